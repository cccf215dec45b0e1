"""The server's threads: a pool for gRPC's calls and one timer.

All are daemon threads, and all but the pool's start only when needed. The pools of the standard
library join their threads at interpreter exit, so a call that is still open would keep a program
from ending.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent import futures
from queue import SimpleQueue
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Task = tuple["futures.Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class DaemonPool(futures.Executor):
    """A pool of a fixed number of daemon threads.

    Args:
        threads: how many; at least 1.
        name: prefix of the threads' names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any
    ) -> futures.Future[_Result]:
        """Runs ``fn(*args, **kwargs)`` on one of the threads."""
        future: futures.Future[_Result] = futures.Future()
        self._tasks.put((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the work that was submitted before.

        Args:
            wait: whether to wait until they have ended.
            cancel_futures: no effect; the server has ended all calls before.
        """
        del cancel_futures
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, fn, args, kwargs = task
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever holds the future
                future.set_exception(error)
            # An idle thread must not keep the last request alive.
            del task, future, fn, args, kwargs


class Timer:
    """Calls functions at given times, on one thread that starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._wakeup = threading.Condition()
        self._entries: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Calls ``function`` at ``when`` (monotonic seconds). It must be quick and not raise."""
        with self._wakeup:
            if self._stopped:
                return
            heapq.heappush(self._entries, (when, next(self._sequence), function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._entries[0][2] is function:
                # Only a nearer wake-up than the one it waits for concerns the thread.
                self._wakeup.notify()

    def stop(self) -> None:
        """Forgets what was not yet called and ends the thread."""
        with self._wakeup:
            self._stopped = True
            self._entries.clear()
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wakeup:
                while not self._stopped and (wait := self._seconds_to_next()) != 0:
                    self._wakeup.wait(wait)
                if self._stopped:
                    return
                function = heapq.heappop(self._entries)[2]
            function()
            del function

    def _seconds_to_next(self) -> float | None:
        if not self._entries:
            return None
        # threading refuses a wait of more than TIMEOUT_MAX; a day and look again is as good.
        return min(max(self._entries[0][0] - time.monotonic(), 0), 86_400)
