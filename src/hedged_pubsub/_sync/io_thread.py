"""The thread that reads from the sockets of HTTP/2 connections, one for the process.

It sleeps until a socket has something, or can be written to again. What it reads ends publish
requests, so the driver decides here what gRPC's own thread would otherwise decide.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

from hedged_pubsub._sync.library_thread import LibraryThread

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE


class IoThread:
    """Calls back when sockets can be read or written.

    Attributes:
        ident: The thread's, while it runs.
    """

    def __init__(self, gate: Any, library: LibraryThread) -> None:
        self._gate = gate
        self._library = library
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forget the thread and its sockets, which a forked child does not have."""
        self.ident: int | None = None
        self._lock = threading.Lock()
        self._is_started = False
        self._jobs: collections.deque[tuple[Callable[..., object], tuple[Any, ...]]] = (
            collections.deque()
        )
        self._wake: socket.socket | None = None

    def start(self) -> None:
        """Start the thread unless it runs. Raise RuntimeError where none can be started."""
        with self._lock:
            if self._is_started:
                return
            woken, self._wake = socket.socketpair()
            woken.setblocking(False)
            self._wake.setblocking(False)
            thread = threading.Thread(
                target=self._run, args=(woken,), name="hedged-pubsub-io", daemon=True
            )
            thread.start()
            self._is_started = True

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` on the thread, soon. Takes no lock: a finalizer may call it."""
        self._jobs.append((function, args))
        wake = self._wake
        if wake is not None and _thread.get_ident() != self.ident:
            with contextlib.suppress(OSError):  # it is full, so the thread wakes up anyway
                wake.send(b"\0")

    # --- On the thread.

    def watch(self, one: socket.socket, events: int, callback: Callable[[int], object]) -> None:
        """Call ``callback(events)`` whenever there are such events; none ends that."""
        try:
            if events:
                self._selector.modify(one, events, callback)
            else:
                self._selector.unregister(one)
        except KeyError:
            if events:
                self._selector.register(one, events, callback)

    def _run(self, woken: socket.socket) -> None:
        self.ident = self._library.io_ident = _thread.get_ident()
        self._selector = selectors.DefaultSelector()
        self._selector.register(woken, READ, None)
        while True:
            timeout = 0.0 if self._jobs else None
            for key, events in self._selector.select(timeout):
                if key.data is None:
                    with contextlib.suppress(OSError):
                        woken.recv(4096)
                else:
                    self._do(key.data, events)
            while self._jobs:
                function, args = self._jobs.popleft()
                self._do(function, *args)

    def _do(self, function: Callable[..., object], *args: Any) -> None:
        try:
            with self._gate:  # a fork waits for the end of this
                function(*args)
        except Exception as error:  # noqa: BLE001 - the thread serves other publishers too
            self._library.on_error(function, error)


def close_quietly(one: socket.socket) -> None:
    """Close a socket that may be broken."""
    with contextlib.suppress(OSError):
        one.close()
