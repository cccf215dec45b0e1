"""One thread that keeps the clock for every publisher of the process."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

_LOGGER = logging.getLogger(__name__)


class Wakeup:
    """Something to be called at a time, unless it is cancelled before.

    A cancelled one stays in the scheduler's heap until its time has come, but lets go of what it
    was to call: a decided batch must not keep its payload alive until its next look.
    """

    __slots__ = ("args", "callback")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...] = ()) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        """Forget the call. Safe from any thread, and when it was called already."""
        self.callback = None
        self.args = ()


class Scheduler:
    """Calls callbacks at their time, on one thread that is started by the first of them.

    The callbacks have to be short and must not run a user's code: they delay each other.

    The thread is signalled only for a wake-up that is nearer than what it sleeps until. The one
    it sleeps until may be cancelled meanwhile; it then wakes once, drops all that are dead, and
    sleeps until the next live one. So a publisher whose batches are all answered in time costs
    one wake-up per hedge delay, however many batches it sends.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.start_anew()

    def start_anew(self) -> None:
        """Start empty: when it is made, and in a forked child, which has no thread of it."""
        self._changed = threading.Condition(threading.Lock())
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Wakeup]] = []
        self._sleeping_until = -math.inf  # never signalled while it is awake
        self._thread: threading.Thread | None = None

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Wakeup:
        """Call ``callback(*args)`` on the scheduler's thread at ``when``, or soon after.

        Args:
            when: Monotonic seconds.
            callback: What to call; an exception of it is logged and harms nothing else.
            args: What to call it with.

        Returns:
            The wake-up, which can be cancelled.

        Raises:
            RuntimeError: If the thread cannot be started.
        """
        wakeup = Wakeup(callback, args)
        with self._changed:
            heapq.heappush(self._heap, (when, next(self._order), wakeup))
            if when < self._sleeping_until:
                self._changed.notify()
            starting = None
            if self._thread is None:
                starting = self._thread = threading.Thread(
                    target=self._run, name="hedged-pubsub-scheduler", daemon=True
                )
        if starting is not None:
            try:
                starting.start()
            except RuntimeError:
                self._thread = None
                raise
        return wakeup

    def _run(self) -> None:
        while True:
            for callback, args in self._wait_for_due():
                try:
                    callback(*args)
                except Exception:
                    _LOGGER.exception("a wake-up failed; the scheduler goes on")

    def _wait_for_due(self) -> list[tuple[Callable[..., object], tuple[Any, ...]]]:
        heap = self._heap
        due: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        with self._changed:
            while True:
                now = self._clock()
                while heap and (heap[0][2].callback is None or heap[0][0] <= now):
                    wakeup = heapq.heappop(heap)[2]
                    args = wakeup.args  # first: whoever cancels forgets the callback first
                    callback = wakeup.callback
                    if callback is not None:
                        due.append((callback, args))
                if due:
                    return due
                self._sleeping_until = heap[0][0] if heap else math.inf
                # A wait that threads cannot do is done in parts.
                self._changed.wait(min(heap[0][0] - now, threading.TIMEOUT_MAX) if heap else None)
                self._sleeping_until = -math.inf
