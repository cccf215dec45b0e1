"""A child process that holds an object and calls its methods, driven over a pair of pipes.

Always a fresh interpreter: gRPC does not survive a fork. A private pair of pipes needs no key and
no port, and the child ends with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, Final, TypeVar, cast

_Result = TypeVar("_Result")

_PARENT_CHECK_SECONDS: Final = 1.0
_END_SECONDS: Final = 5.0

# The empty entry stands for the current folder: modules must come from where this process finds
# them, not from a file that happens to be there.
_PROGRAM: Final = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
from hedged_pubsub.testing.child import main
main()
"""


class Child:
    """A process with one object in it, made by ``make(*args)`` at the first call. Not thread-safe.

    All that goes there and comes back is pickled. A child that takes longer than ``timeout``
    seconds for a call (None: no limit) is killed. If ``quiet``, what it prints is kept for the
    error message if it dies, instead of passed on to standard error.
    """

    def __init__(
        self, make: Callable[..., object], *args: object, timeout: float | None, quiet: bool
    ) -> None:
        self.timeout = timeout
        self._death = ""
        self._stderr = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115
        self._process = subprocess.Popen(  # noqa: S603 - our own code
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            # Out of the terminal's process group: Ctrl-C is for this process, which may still need
            # the child while it cleans up.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._requests = cast(BinaryIO, self._process.stdin)
        self._replies = cast(BinaryIO, self._process.stdout)
        with contextlib.suppress(OSError):  # it has died already, which the first call reports
            self._send((os.getpid(), make, args))

    def call(self, function: Callable[..., _Result], *args: object) -> _Result:
        """Call a function with the child's object and more arguments; return or raise as it does.

        RuntimeError: the child has died, or was killed after the timeout; with what it printed.
        """
        watchdog = threading.Timer(self.timeout or 0.0, self._process.kill)
        watchdog.daemon = True
        if self.timeout is not None:
            watchdog.start()
        try:
            self._send((function, args))
            result, error = pickle.load(self._replies)  # noqa: S301 - our own child wrote it
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            # ValueError is what a closed pipe raises.
            self._death = self._death or self._obituary()
            raise RuntimeError(self._death) from None
        finally:
            watchdog.cancel()
        if error is not None:
            raise error
        return cast(_Result, result)

    def end(self, *, kill: bool = False) -> None:
        """End the process, at once if ``kill``; otherwise it gets some seconds to end by itself."""
        if kill:
            self._process.kill()
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):  # what was still to be written to a dead child
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._process.kill()
        self._process.wait()
        if self._stderr is not None:
            self._stderr.close()

    def _send(self, request: tuple[object, ...]) -> None:
        self._requests.write(pickle.dumps(request))
        self._requests.flush()

    def _obituary(self) -> str:
        """Say how the child ended, with what it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        death = f"the child process has ended (exit code: {self._process.returncode})"
        if self._stderr is None or self._stderr.closed:
            return death
        self._stderr.seek(0)
        printed = self._stderr.read().decode(errors="replace").strip()
        return f"{death}; its standard error:\n{printed or '(empty)'}"


def main() -> None:
    """Serve the parent until it closes the pipes, or ends; what the child runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever else writes to standard output must not end up between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    parent, make, make_args = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own parent wrote it
    if os.name == "posix":
        threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    target = None
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has gone
        while True:
            function, args = pickle.load(sys.stdin.buffer)  # noqa: S301
            try:
                if target is None:
                    target = make(*make_args)
                reply = pickle.dumps((function(target, *args), None))
            except Exception as error:  # noqa: BLE001 - the parent raises it
                reply = pickle.dumps((None, error))
            replies.write(reply)
            replies.flush()
    # Not an ordinary exit: it takes longer, and calls that are still open would hold it up.
    os._exit(0)


def _exit_with_parent(parent: int) -> None:
    # The pipe alone does not tell if the parent forked: its other children hold the pipe open.
    # Windows has no forks, and there a virtual environment's launcher stands between the two.
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)
