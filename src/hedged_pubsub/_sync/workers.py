"""Threads for what may run a user's code: done-callbacks, retry predicates, interceptors.

It must run neither on gRPC's completion thread nor on the scheduler's: a callback that sleeps
there holds up every other batch. One thread is enough as long as jobs are short; while jobs wait
and none is taken, all workers are stuck in a user's code, and more are added.
"""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from hedged_pubsub._sync.scheduler import Scheduler

_LOGGER = logging.getLogger(__name__)

_PATIENCE: Final = 0.01
"""Seconds without a job taken after which the workers count as stuck. Long enough for a worker
that merely waits for the interpreter's lock (5 ms a switch), short beside any hedge delay."""

_IDLE_TIMEOUT: Final = 5.0
"""Seconds after which a worker without a job ends: an idle process keeps no threads."""

_Job = tuple[Callable[..., object], tuple[Any, ...]]


class Workers:
    """Runs jobs in order of arrival on as few daemon threads as keep them moving.

    Args:
        scheduler: Looks after stuck workers.
        clock: The scheduler's clock.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self.start_anew()

    def start_anew(self) -> None:
        """Start empty: when it is made, and in a forked child, which has no worker."""
        self._jobs: collections.deque[_Job] = collections.deque()
        self._changed = threading.Condition(threading.Lock())
        self._threads = 0
        self._idle = 0
        self._taken = 0
        self._watched = False

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Run ``function(*args)`` soon on a worker; an exception of it is logged."""
        start = watch = False
        with self._changed:
            self._jobs.append((function, args))
            if len(self._jobs) <= self._idle:
                self._changed.notify()
            elif self._threads == 0:
                self._threads = 1
                start = True
            elif not self._watched:
                self._watched = watch = True
        if start:
            self._start_thread()
        if watch:
            self._watch(self._taken)

    def wait_until_idle(self, timeout: float) -> bool:
        """Wait until no job waits or runs; for the end of the interpreter.

        Args:
            timeout: Seconds to wait at most.

        Returns:
            Whether there is none.
        """
        give_up = self._clock() + timeout
        while self._jobs or self._idle < self._threads:
            if self._clock() >= give_up:
                return False
            time.sleep(0.005)
        return True

    def _watch(self, taken: int) -> None:
        self._scheduler.call_at(self._clock() + _PATIENCE, self._relieve, taken)

    def _relieve(self, taken_before: int) -> None:
        """Add workers if jobs wait and none was taken; watch on while jobs wait."""
        with self._changed:
            if not self._jobs:
                self._watched = False
                return
            taken = self._taken
            # Doubling: a burst of blocking callbacks gets its threads within a few rounds.
            more = min(len(self._jobs), max(1, self._threads)) if taken == taken_before else 0
            self._threads += more
        for _ in range(more):
            self._start_thread()
        self._watch(taken)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="hedged-pubsub-worker", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No new threads at interpreter shutdown. What was accepted must still end.
            self._run_waiting()

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            _run_job(job)
            # Or the worker would keep the batch alive until its next job.
            del job

    def _next_job(self) -> _Job | None:
        with self._changed:
            while not self._jobs:
                self._idle += 1
                woken = self._changed.wait(_IDLE_TIMEOUT)
                self._idle -= 1
                if not woken and not self._jobs:
                    self._threads -= 1
                    return None
            self._taken += 1
            return self._jobs.popleft()

    def _run_waiting(self) -> None:
        with self._changed:
            self._threads -= 1
            jobs = list(self._jobs)
            self._jobs.clear()
        for job in jobs:
            _run_job(job)


def _run_job(job: _Job) -> None:
    function, args = job
    try:
        function(*args)
    except BaseException:  # a user's SystemExit must not end the worker either
        _LOGGER.exception("a job of %r failed", function)
