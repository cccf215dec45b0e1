"""Keeps our threads out of gRPC's core while the process forks.

If a thread is inside gRPC's core when another one forks, gRPC skips what it does to make the child
work, and calls in the child hang. It parks its own threads; ours are held here.
"""

from __future__ import annotations

import collections
import threading
import time
from types import TracebackType
from typing import Final

_PATIENCE: Final = 1.0
"""Seconds that a fork waits for threads to come out. Starting or cancelling a call takes about a
tenth of a millisecond; whoever takes longer is not waited for."""


class ForkGate:
    """A context manager for calling gRPC inside of it. No lock is taken while nobody forks."""

    def __init__(self) -> None:
        # Appending and popping are atomic, which adding to a number is not.
        self._inside: collections.deque[None] = collections.deque()
        self._closed = False
        self._opened = threading.Event()

    def __enter__(self) -> None:
        # First in, then look: so either this thread sees that the gate is closed, or whoever
        # closed it sees this thread.
        self._inside.append(None)
        while self._closed:
            self._inside.pop()
            self._opened.wait()
            self._inside.append(None)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inside.pop()

    def close(self) -> None:
        """Hold new threads, and wait for those inside: before a fork."""
        self._opened.clear()
        self._closed = True
        give_up = time.monotonic() + _PATIENCE
        while self._inside and time.monotonic() < give_up:
            time.sleep(0.0005)

    def open(self) -> None:
        """Let threads in again: after a fork, in the parent."""
        self._closed = False
        self._opened.set()

    def start_anew(self) -> None:
        """Forget the threads that a forked child does not have."""
        self.__init__()  # type: ignore[misc]
