"""The threads that all publishers of the process share. None runs before it is needed."""

from __future__ import annotations

import _thread
import collections
import functools
import logging
import math
import time
from collections.abc import Callable
from typing import Final, Protocol

from hedged_pubsub._core import log
from hedged_pubsub._sync import greenlets
from hedged_pubsub._sync.fork_gate import ForkGate
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.workers import Workers

CLOCK: Final = time.monotonic
LIBRARY: Final = LibraryThread(CLOCK)
WORKERS: Final = Workers(LIBRARY, CLOCK)
FORK_GATE: Final = ForkGate()


class Closable(Protocol):
    """A channel, or a transport."""

    def close(self) -> object:
        """Close it."""


_CHECK_INTERVAL: Final = 1.0
_HELP_INTERVAL: Final = 0.05
"""Seconds after which a thread that waits checks whether threads can be started, and while none
can be, so that it has to do their work."""


def log_later(level: int, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log a message soon, on a worker, which a user's log handler may block."""
    WORKERS.submit(lambda: log.write(level, message, *args, error=error))


_UNASKED_QUIET: Final = 60.0
"""Seconds between two lines about messages that failed and that nobody asked for."""


class Unasked:
    """Tells now and then of messages that have failed without anybody asking for their futures."""

    def __init__(self) -> None:
        self._counts: collections.deque[int] = collections.deque()
        self._quiet_until = -math.inf

    def report(self, count: int, error: BaseException) -> None:
        """Take note of so many, whose error this is; on any thread, in a finalizer."""
        self._counts.append(count)
        if CLOCK() < self._quiet_until:
            return
        self._quiet_until = CLOCK() + _UNASKED_QUIET
        total = 0
        while self._counts:
            total += self._counts.popleft()
        text = (
            "%d messages have failed, and nobody has asked: call result() or exception(), or add a "
            "done-callback. The last error: %s"
        )
        log_later(logging.WARNING, text, total, repr(error))


UNASKED: Final = Unasked()


def _report(function: Callable[..., object], error: Exception) -> None:
    log_later(logging.ERROR, "publishing goes on after an error in %r", function, error=error)


def _warn() -> None:
    reason = greenlets.why_no_hedges()
    if reason is not None:
        log_later(logging.WARNING, reason)


LIBRARY.on_error = _report
LIBRARY.on_start = _warn


def close(channel: Closable) -> None:
    """Close a channel on a worker, but not during a fork, whose child could find it locked."""
    with FORK_GATE:
        channel.close()


def close_on_worker(channel: Closable) -> None:
    """Close a channel on a worker, wait for it, and raise what closing it raises.

    An exception from a signal handler could leave the channel locked: gRPC uses Python's
    conditions. The garbage collector, which closes it again, would hang in whatever thread it runs.
    """
    start_on_worker(functools.partial(close, channel))(None)


def start_on_worker(function: Callable[[], object]) -> Callable[[float | None], None]:
    """Call a function on a worker; return how to wait for it, for so many seconds at most.

    Who waits gets the error that the function raised.
    """
    ended = _thread.allocate_lock()
    ended.acquire()
    errors: list[BaseException] = []

    def job() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
            errors.append(error)
        finally:
            ended.release()

    def wait(timeout: float | None) -> None:
        wait_for(ended, timeout)
        if errors:
            raise errors[0]

    # Through the library's thread, as an exception could leave a worker half started, too.
    LIBRARY.post(WORKERS.submit_urgent, job)
    if not LIBRARY.start():
        LIBRARY.run_once()
    return wait


def wait_for(wake: _thread.LockType, timeout: float | None) -> bool:
    """Wait until a lock is released, and do the threads' work where none can be started.

    A lock, as an exception from a signal handler may end the wait at any place without harm, which
    a condition does not allow.

    Returns:
        Whether it was released within ``timeout`` seconds.
    """
    LIBRARY.refuse_to_wait()
    give_up = math.inf if timeout is None else CLOCK() + timeout
    while True:
        interval = _CHECK_INTERVAL
        if not LIBRARY.start():
            LIBRARY.run_once()
            interval = _HELP_INTERVAL
        if WORKERS.starved:
            # A done-callback may take longer than the timeout.
            WORKERS.help(with_all=timeout is None)
            interval = _HELP_INTERVAL
        left = give_up - CLOCK()
        if wake.acquire(timeout=max(0.0, min(left, interval))):
            return True
        if left <= interval:
            return False
