"""The server in a process of its own, driven over the process's standard input and output.

A private pair of pipes needs no key and no port, and it ends with this process, however that ends:
the child then reads the end of the file and exits.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from typing import Any, BinaryIO, cast

from hedged_pubsub.testing.faults import FaultScript
from hedged_pubsub.testing.records import Attempt, StoredMessage
from hedged_pubsub.testing.settings import ServerSettings

# Starting takes about a second; a machine that needs more than this is not usable for tests.
_START_SECONDS = 30.0
_STOP_SECONDS = 5.0

# The empty entry stands for the current folder: modules must come from where this process finds
# them, not from a file that happens to be there.
_PROGRAM = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
from hedged_pubsub.testing.process_child import main
main()
"""


class ProcessServer:
    """A `LocalServer` in a child process, up from construction to `stop`. Thread-safe.

    The methods are those of `LocalServer`, which also documents what they raise.

    Args:
        settings: how to set it up.
        script: what happens to the Publish calls.

    Raises:
        RuntimeError: if the process does not start or the port is not free.
    """

    def __init__(self, settings: ServerSettings, script: FaultScript) -> None:
        self._lock = threading.Lock()
        self._records: tuple[tuple[Attempt, ...], tuple[StoredMessage, ...]] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child
        self._child = subprocess.Popen(  # noqa: S603 - our own code
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(),
            # Out of the terminal's process group: Ctrl-C is for this process, which may still need
            # the server while it cleans up.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._requests = cast(BinaryIO, self._child.stdin)
        self._replies = cast(BinaryIO, self._child.stdout)
        self._death = ""
        watchdog = threading.Timer(_START_SECONDS, self._child.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            self.port: int = self._request(os.getpid(), settings, script)
        except BaseException:
            self._end_child()
            raise
        finally:
            watchdog.cancel()

    def create_topic(self, path: str) -> None:
        """Adds a topic."""
        self._call("create_topic", path)

    def create_subscription(self, path: str, topic: str) -> None:
        """Adds a subscription."""
        self._call("create_subscription", path, topic)

    def set_script(self, script: FaultScript) -> None:
        """Replaces the script."""
        self._call("set_script", script)

    def attempts(self, topic: str | None) -> tuple[Attempt, ...]:
        """Returns every Publish attempt."""
        with self._lock:
            if self._records is None:
                attempts: tuple[Attempt, ...] = self._request("attempts", topic)
                return attempts
            return tuple(a for a in self._records[0] if topic in (None, a.topic))

    def messages(self, topic: str | None) -> tuple[StoredMessage, ...]:
        """Returns every stored message."""
        with self._lock:
            if self._records is None:
                messages: tuple[StoredMessage, ...] = self._request("messages", topic)
                return messages
            return tuple(m for m in self._records[1] if topic in (None, m.topic))

    def clear(self) -> None:
        """Forgets attempts and messages."""
        with self._lock:
            if self._records is None:
                self._request("clear")
            else:
                self._records = ((), ())

    def stop(self) -> None:
        """Stops the server and ends its process; the records stay readable.

        Does not raise if the process has died before: its records are lost then.
        """
        with self._lock:
            if self._requests.closed:
                return
            try:
                self._request("stop")
                self._records = (self._request("attempts", None), self._request("messages", None))
            except RuntimeError:
                pass  # it has died; reading the records says so
            finally:
                self._end_child()

    def _call(self, method: str, *args: object) -> None:
        with self._lock:
            self._request(method, *args)

    def _request(self, *request: object) -> Any:
        """Sends a request to the child and returns its result or raises its error."""
        pickled = pickle.dumps(request)
        try:
            self._requests.write(pickled)
            self._requests.flush()
            result, error = pickle.load(self._replies)  # noqa: S301 - our own child wrote it
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            # ValueError is what a pipe raises that was closed when the child was found dead.
            self._death = self._death or self._obituary()
            raise RuntimeError(self._death) from None
        if error is not None:
            raise error
        return result

    def _end_child(self) -> None:
        for pipe in (self._requests, self._replies):
            with contextlib.suppress(OSError):  # what was still to be written to a dead child
                pipe.close()
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._stderr.close()

    def _obituary(self) -> str:
        """Says how the child ended, with what it wrote to its standard error."""
        try:
            code: object = self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        self._stderr.seek(0)
        stderr = self._stderr.read().decode(errors="replace").strip()
        return (
            f"the server's process has ended (exit code: {code}); its standard error:\n"
            f"{stderr or '(empty)'}"
        )


def _environment() -> dict[str, str]:
    """Returns the child's environment: it finds modules where this process finds them."""
    path = [os.path.abspath(entry) for entry in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
