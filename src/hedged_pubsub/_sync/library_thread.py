"""The one thread of the library: it makes batches, starts requests and keeps the timers.

All other threads pass work to it through one queue: callers a mailbox that has messages, gRPC's
thread and the workers a function to be called now or later. Passing it is one call of C code, so it
needs no lock, and no exception from a signal handler can leave it half done. What may be a user's
code runs on the workers instead.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, Protocol

_CHECK_INTERVAL: Final = 0.05
"""Seconds after which whoever waits for the thread's answer checks whether it still runs."""


class Item(Protocol):
    """Something in the queue with work of its own: a mailbox, or a fork that begins."""

    def take(self) -> None:
        """Do the work, on the library's thread."""


class Parking:
    """Holds the thread while the process forks."""

    __slots__ = ("arrived", "departure")

    def __init__(self) -> None:
        self.arrived = _thread.allocate_lock()
        self.arrived.acquire()
        self.departure = _thread.allocate_lock()
        self.departure.acquire()

    def take(self) -> None:
        """Hold the library's thread, on which this runs."""
        self.arrived.release()
        self.departure.acquire()

    def end(self) -> None:
        """Let the thread go on, now or when it comes here."""
        self.departure.release()


_Timer = tuple[Any, ...]
"""When, in which order, what to call, and with what."""
_Order = tuple[float, Callable[..., object], tuple[Any, ...]]


class LibraryThread:
    """A thread that sleeps until there is work in its queue, or a timer is due.

    The first message of the process starts it. Where it cannot be started, whoever needs it calls
    ``run_once``.

    Attributes:
        put: Passes it an ``Item``: the queue's own method, so that it is one call of C code.
        ident: The thread's, while it runs.
        must_not_wait: The threads that give futures their outcome: this one, and gRPC's while it is
            in our code.
        io_ident: That of the I/O thread of HTTP/2 connections, which does so as well.
        workers: The threads that may hold a guard now and then, and run users' code otherwise.
        is_stand_in: Whether another thread does the work just now, because this one cannot start.
        on_error: Called with a function that raised, and the error. It must not block.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.put: Callable[[Item | _Order], None] = self._inbox.put
        self._order = itertools.count()
        self.on_error: Callable[[Callable[..., object], Exception], object] = lambda *_: None
        self._guards: list[weakref.ref[Any]] = []
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget all work and timers, and the thread, which a forked child does not have."""
        while not self._inbox.empty():
            self._inbox.get_nowait()
        self._timers: list[_Timer] = []
        self.ident: int | None = None
        self.must_not_wait: set[int] = set()
        self.io_ident: int | None = None
        self.workers: set[int] = set()
        self.is_stand_in = False
        self._started = False
        # Held by whoever does the thread's work: by the thread for good, by others for one turn.
        self._turn = threading.Lock()

    def start(self) -> bool:
        """Start the thread unless it runs; return whether it does."""
        if not self._started:
            try:
                # Not ``Thread.start``, which waits on a condition: an exception from a signal
                # handler there could leave both threads hanging. If two first messages start two
                # threads, one of them ends at once.
                _thread.start_new_thread(self._begin, ())
            except RuntimeError:
                return False
            self._started = True
        return True

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` on the thread, as soon as it is free."""
        self.put((0.0, function, args))

    def call_at(self, when: float, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` on the thread at ``when``; what it raises is logged."""
        if self.is_stand_in or _thread.get_ident() == self.ident:
            heapq.heappush(self._timers, (when, next(self._order), function, *args))
        else:
            self.put((when, function, args))

    def ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function(*args)`` on the thread, and return its result or raise its error."""
        self.refuse_to_wait()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def call() -> None:
            try:
                answer.put((function(*args), None))
            except BaseException as error:  # noqa: BLE001 - it is raised where the caller waits
                answer.put((None, error))

        self.post(call)
        while True:
            if not self.start():
                self.run_once()
            try:
                result, error = answer.get(timeout=_CHECK_INTERVAL)
            except queue.Empty:
                continue
            if error is not None:
                raise error
            return result

    def guard(self) -> Any:
        """Return a lock that the thread takes; whoever holds it must not wait for the thread."""
        lock = threading.RLock()
        self._guards.append(weakref.ref(lock, self._guards.remove))
        return lock

    def _holds_guard(self) -> bool:
        locks = [guard() for guard in self._guards.copy()]
        return any(lock._is_owned() for lock in locks if lock is not None)

    def refuse_to_wait(self) -> None:
        """Raise RuntimeError on a thread that gives futures their outcome, or holds a guard.

        A finalizer may be run there: on whatever thread the garbage collector happens to run.
        """
        ident = _thread.get_ident()
        is_ours = ident in self.must_not_wait or ident == self.io_ident
        if is_ours or (ident in self.workers and self._holds_guard()):
            raise RuntimeError(
                "cannot wait for messages in a finalizer that runs on one of the library's own "
                "threads: close the publisher before it is dropped"
            )

    def run_once(self) -> None:
        """Do on this thread what the library's would do now, unless another one does."""
        if not self._turn.acquire(blocking=False):
            return
        self.is_stand_in = True
        try:
            while self._step(0.0):
                pass
        finally:
            self.is_stand_in = False
            self._turn.release()

    def park(self, patience: float) -> Parking:
        """Hold the thread between two pieces of work; wait ``patience`` seconds for it at most."""
        parking = Parking()
        if self.ident is not None and self.ident != _thread.get_ident():
            self.put(parking)
            parking.arrived.acquire(timeout=patience)
        return parking

    def _begin(self) -> None:
        """Run in one of Python's threads, which has a name and is seen by debuggers."""
        try:
            threading.Thread(target=self._run, name="hedged-pubsub", daemon=True).start()
        except RuntimeError:
            self._run()

    def _run(self) -> None:
        if not self._turn.acquire(blocking=False):
            return
        self.ident = _thread.get_ident()
        self.must_not_wait.add(self.ident)
        while True:
            due = self._timers[0][0] - self._clock() if self._timers else threading.TIMEOUT_MAX
            self._step(min(max(due, 0.0), threading.TIMEOUT_MAX))

    def _step(self, timeout: float) -> bool:
        """Wait for one piece of work, do it and what is due; return whether there was any."""
        try:
            item = self._inbox.get(timeout=timeout) if timeout else self._inbox.get_nowait()
        except queue.Empty:
            item = None
        if type(item) is tuple:
            when, function, args = item
            heapq.heappush(self._timers, (when, next(self._order), function, *args))
        elif item is not None:
            self._call(item.take)
        called = self._call_due()
        return called or item is not None

    def _call_due(self) -> bool:
        # Timers that these set for now wait for the next turn, so that the queue gets its own.
        due: list[_Timer] = []
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers))
        for _when, _order, function, *args in due:
            self._call(function, *args)
        return bool(due)

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - R8: the thread survives
            self.on_error(function, error)
