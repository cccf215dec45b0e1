"""Threads for what may run a user's code: callbacks, retry predicates, interceptors, log handlers.

On gRPC's thread or the library's a callback that sleeps would hold up every other batch. One worker
is enough as long as jobs are short; while jobs wait and none is taken, all workers are stuck, and
more are added. What a batch waits for, such as a retry predicate, is taken before what only tells
the user of it, so that a thousand short callbacks hold up nothing.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from hedged_pubsub._core import log
from hedged_pubsub._sync import greenlets
from hedged_pubsub._sync.library_thread import LibraryThread

_PATIENCE: Final = 0.01
"""Seconds without a job taken after which the workers count as stuck: longer than a worker waits
for the interpreter's lock (5 ms a switch), shorter than any hedge delay."""

_IDLE_TIMEOUT: Final = 5.0
"""Seconds after which a worker without a job ends."""

_TRY_AGAIN: Final = 0.1
"""Seconds until the next try where no thread could be started."""

_Job = tuple[Callable[..., object], tuple[Any, ...]]


class Workers:
    """Runs jobs on as few daemon threads as keep them moving.

    ``starved`` is set while no thread can be started: whoever waits for a message should ``help``.
    """

    def __init__(self, library: LibraryThread, clock: Callable[[], float]) -> None:
        self._library = library
        self._clock = clock
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget all jobs, and the workers, which a forked child does not have."""
        self._urgent: collections.deque[_Job] = collections.deque()
        self._later: collections.deque[_Job] = collections.deque()
        # One for each job; workers sleep on it. Safe from any thread, and in a signal handler.
        self._tokens: queue.SimpleQueue[None] = greenlets.native_queue()
        # Changed without a lock, as in ``flow_control``: this thread could hold it already, where
        # the garbage collector runs what submits a job.
        self._threads = 0
        self._idle = 0
        self._taken = 0
        self._watched = False
        self.starved = False

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)`` on a worker, after what batches wait for; log what it raises."""
        self._later.append((function, args))
        self._added()

    def submit_urgent(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)`` on the next worker that is free: a batch waits for it."""
        self._urgent.append((function, args))
        self._added()

    def help(self, *, with_all: bool) -> None:
        """Run a job here if no worker could be started; ``with_all``, also a done-callback."""
        lines = (self._urgent, self._later) if with_all else (self._urgent,)
        if self.starved and (job := _pop(*lines)) is not None:
            _run_job(job)

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no job waits or runs; return whether that is so within the timeout."""
        give_up = self._clock() + timeout
        while self._urgent or self._later or self._idle < self._threads:
            if self._clock() >= give_up:
                return False
            self.help(with_all=True)
            time.sleep(0.005)
        return True

    def _added(self) -> None:
        if greenlets.are_threads():  # which are cheap, and wait for nothing between two jobs
            self._threads += 1
            greenlets.spawn(self._run_one)
            return
        self._tokens.put(None)
        waiting = len(self._urgent) + len(self._later)
        if self._threads == 0:
            self._threads = 1
            self._start_thread()
        elif waiting > self._idle and not self._watched:
            self._watched = True
            self._watch(self._taken)

    def _watch(self, taken: int) -> None:
        self._library.call_at(self._clock() + _PATIENCE, self._relieve, taken)

    def _relieve(self, taken_before: int) -> None:
        """Add workers if jobs wait and none was taken; check again while jobs wait."""
        waiting = len(self._urgent) + len(self._later)
        if self.starved:  # it is tried again, not as often
            self._watched = False
            return
        if not waiting:
            self._watched = False
            if not (self._urgent or self._later):  # nor did one come just before
                return
            self._watched = True
        taken = self._taken
        # Doubling: a burst of blocking callbacks gets its threads within a few rounds.
        more = min(waiting, max(1, self._threads)) if taken == taken_before else 0
        for _ in range(more):
            self._threads += 1
            if not self._start_thread():
                break
        self._watch(taken)

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._run, name="hedged-pubsub-worker", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # None can be started: too many, too little memory, or the interpreter ends.
            self._threads -= 1
            if not self.starved:
                self.starved = True
                self._library.call_at(self._clock() + _TRY_AGAIN, self._try_again)
            return False
        if self.starved:
            self.starved = False
            if not self._watched:
                self._watched = True
                self._watch(self._taken)
        return True

    def _try_again(self) -> None:
        if not self.starved:
            return
        if not (self._urgent or self._later):
            self.starved = False  # the next job tries again
            return
        self._threads += 1
        if not self._start_thread():
            self._library.call_at(self._clock() + _TRY_AGAIN, self._try_again)

    def _run(self) -> None:
        helpers, ident = self._library.workers, threading.get_ident()
        helpers.add(ident)
        while self._wait_for_token():
            if (job := _pop(self._urgent, self._later)) is not None:
                self._taken += 1
                _run_job(job)
                # Otherwise the worker keeps the batch alive until its next job.
                del job
        helpers.discard(ident)

    def _run_one(self) -> None:
        try:
            if (job := _pop(self._urgent, self._later)) is not None:
                _run_job(job)
        finally:
            # A forked child has its parent's greenlets, of which nothing was counted there.
            self._threads = max(0, self._threads - 1)

    def _wait_for_token(self) -> bool:
        self._idle += 1
        try:
            self._tokens.get(timeout=_IDLE_TIMEOUT)
        except queue.Empty:
            self._idle -= 1
            self._threads -= 1
            if self._urgent or self._later:
                # A job came in that moment, and counted on this worker.
                self._added()
            return False
        self._idle -= 1
        return True


def _pop(*lines: collections.deque[_Job]) -> _Job | None:
    for line in lines:
        with contextlib.suppress(IndexError):
            return line.popleft()
    return None


def _run_job(job: _Job) -> None:
    function, args = job
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001 - even a user's SystemExit must not end the worker
        with contextlib.suppress(BaseException):  # nor what a log handler raises
            log.write(logging.ERROR, "a job of %r failed", function, error=error)
