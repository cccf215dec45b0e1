"""Greenlets, which take the place of threads in a program that gevent or eventlet has patched.

All greenlets of a native thread take turns on it, around one *hub*. What the patches put in the
place of queues works there alone, but such a program has other native threads too: gevent's thread
pool. So the library's greenlets run on the hub that gRPC's run on, and what is for them comes, as
ever, through a native queue. As waiting for that would hold up all greenlets, a native thread does.

eventlet's patched queue is used as it is: gRPC blocks all of eventlet's greenlets anyway.
"""

from __future__ import annotations

import collections
import importlib
import queue
import sys
from collections.abc import Callable
from typing import Any, Final

from hedged_pubsub._google import official

_GEVENT: Final = (
    "gevent has patched this process, and gRPC has not been told: while it waits for an answer, it "
    "blocks all greenlets, so that no hedge can be sent. Call "
    "grpc.experimental.gevent.init_gevent() right after monkey.patch_all()"
)
_EVENTLET: Final = (
    "eventlet has patched this process, which gRPC does not support: while it waits for an answer, "
    "it blocks all greenlets, so that no hedge can be sent. Use threads, or gevent with "
    "grpc.experimental.gevent.init_gevent()"
)


def are_threads() -> bool:
    """Tell whether gevent's greenlets take the place of threads."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def why_no_hedges() -> str | None:
    """Return what keeps hedges from being sent in this program, and the remedy; None if nothing."""
    if are_threads():
        return None if official.gevent_hub() is not None else _GEVENT
    patcher: Any = sys.modules.get("eventlet.patcher")
    return _EVENTLET if patcher is not None and patcher.is_monkey_patched("thread") else None


def deadlocks(*, made_for_greenlets: bool) -> bool:
    """Tell whether starting a request would deadlock on a channel that was made like that.

    Its lock is a thread's where gevent has patched the process later, as gunicorn's gevent worker
    does with an application that is loaded before. gRPC holds it while it starts the greenlet that
    receives the answer, and this one waits for it, with all others. A call that waits needs none.
    """
    return not made_for_greenlets and are_threads() and official.gevent_hub() is None


def native_queue() -> queue.SimpleQueue[Any]:
    """Return a queue that native threads may use, whatever gevent has patched."""
    monkey: Any = sys.modules.get("gevent.monkey")
    kind = queue.SimpleQueue if monkey is None else monkey.get_original("queue", "SimpleQueue")
    made: queue.SimpleQueue[Any] = kind()
    return made


def spawn(function: Callable[..., object], *args: Any) -> None:
    """Call ``function(*args)`` in a greenlet, soon. From any native thread."""
    gevent: Any = sys.modules["gevent"]
    hub = official.gevent_hub() or gevent.get_hub()
    hub.loop.run_callback_threadsafe(gevent.spawn, function, *args)


class Bridge:
    """What a greenlet gets a native queue's items from, without holding up the others.

    For one greenlet, which makes it.
    """

    def __init__(self, native: queue.SimpleQueue[Any]) -> None:
        self._native = native
        self._items: collections.deque[Any] = collections.deque()
        self._arrived = importlib.import_module("gevent.event").Event()
        self._wake = importlib.import_module("gevent").get_hub().loop.async_()
        self._wake.start(self._arrived.set)
        monkey = importlib.import_module("gevent.monkey")
        monkey.get_original("_thread", "start_new_thread")(self._carry, ())

    def _carry(self) -> None:
        """Carry items over, on a native thread."""
        while True:
            self._items.append(self._native.get())
            self._wake.send()

    def get_nowait(self) -> Any:
        """Return an item, or raise ``queue.Empty``."""
        try:
            return self._items.popleft()
        except IndexError:
            raise queue.Empty from None

    def get(self, timeout: float) -> Any:
        """Return an item; wait so many seconds for it at most, or raise ``queue.Empty``."""
        if not self._items:
            # Cleared first, then checked: an item that comes in between is seen here.
            self._arrived.clear()
            if not self._items:
                self._arrived.wait(timeout)
        return self.get_nowait()
