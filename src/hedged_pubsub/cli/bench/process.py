"""A process that measures: a fresh interpreter that runs one job after another.

A fresh one rather than a fork: gRPC does not get over a fork, and what one client has left behind
in memory must not be in the other's numbers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Final, Protocol, TypeVar, cast

from hedged_pubsub.cli.open_loop import MeasurementError

_PATIENCE: Final = 300.0
"""Seconds for one job. The longest, the official client's tails, takes a tenth of it."""

_END_SECONDS: Final = 5.0

# The empty entry stands for the current folder: modules must come from where this process finds
# them, not from a file that happens to be there.
_PROGRAM: Final = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
from hedged_pubsub.cli.bench.process import serve
serve()
"""

Result = TypeVar("Result", covariant=True)


class Job(Protocol[Result]):
    """Something to measure in a process of its own; it and its result are sent by pickle."""

    def run(self) -> Result:
        """Measure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reply:
    """What became of a job.

    Attributes:
        result: What it returned.
        error: The traceback of what it raised; None if it returned.
    """

    result: object = None
    error: str | None = None


class MeasuringProcess:
    """A context manager that runs jobs in a process of its own, which ends with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own code
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            # Out of the terminal's process group: this process ends it after Ctrl-C.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._jobs = cast("BinaryIO", self._process.stdin)
        self._replies = cast("BinaryIO", self._process.stdout)

    def __enter__(self) -> MeasuringProcess:
        """Return this."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process: at once if something went wrong, which includes Ctrl-C."""
        if exc_type is not None:
            self._process.kill()
        with contextlib.suppress(OSError):  # it has died with half a job in the pipe
            self._jobs.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._replies.close()

    def run(self, job: Job[Result]) -> Result:
        """Run a job and return its result.

        Raises:
            MeasurementError: If it failed, or did not end.
        """
        watchdog = threading.Timer(_PATIENCE, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            self._jobs.write(pickle.dumps(job))
            self._jobs.flush()
            reply: _Reply = pickle.load(self._replies)  # noqa: S301 - our own process wrote it
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise MeasurementError(
                f"the process of {job} has died, or took more than {_PATIENCE:g} s"
            ) from error
        finally:
            watchdog.cancel()
        if reply.error is not None:
            raise MeasurementError(f"{job} failed: {reply.error}")
        return cast("Result", reply.result)


def serve() -> None:
    """Run the jobs that come over standard input until its end; the new process's part."""
    jobs = sys.stdin.buffer
    # Whatever else writes to standard output must not end up between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        while True:
            job: Job[object] = pickle.load(jobs)  # noqa: S301 - the process that started this one
            gc.collect()
            try:
                reply = _Reply(result=job.run())
            except Exception:  # noqa: BLE001 - whatever it is, the other process reports it
                reply = _Reply(error=traceback.format_exc().strip())
            pickle.dump(reply, replies)
            replies.flush()
    except (EOFError, BrokenPipeError):
        pass
    # Not an ordinary exit: stalled requests would hold it up, and the result is delivered.
    os._exit(0)
