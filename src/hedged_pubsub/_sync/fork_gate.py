"""Keeps workers out of gRPC's core while the process forks.

If a thread is inside gRPC's core during a fork, gRPC does not prepare the child, and calls in the
child hang. ``Parking`` holds the library's thread and gRPC's, and this module the workers.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import Final

_PATIENCE: Final = 1.0
"""Seconds that a fork waits for threads inside. Starting or cancelling a call takes 0.1 ms."""


class ForkGate:
    """A context manager around calls of gRPC. It takes no lock unless the process forks.

    Attributes:
        is_closed: Whether threads are held.
    """

    def __init__(self) -> None:
        # Appending and popping are atomic, which adding to a number is not.
        self._inside: collections.deque[None] = collections.deque()
        self.is_closed = False
        self._opened = threading.Event()

    def __enter__(self) -> None:
        # Enter first, then check: either this thread sees that the gate is closed, or whoever
        # closed it sees this thread.
        self._inside.append(None)
        while self.is_closed:
            self._inside.pop()
            self._opened.wait()
            self._inside.append(None)

    def __exit__(self, *_: object) -> None:
        self._inside.pop()

    def close(self) -> None:
        """Hold new threads, and wait for those inside: before a fork."""
        self._opened.clear()
        self.is_closed = True
        give_up = time.monotonic() + _PATIENCE
        while self._inside and time.monotonic() < give_up:
            time.sleep(0.0005)

    def open(self) -> None:
        """Let threads in again: after a fork, in the parent."""
        self.is_closed = False
        self._opened.set()

    def reset_after_fork(self) -> None:
        """Forget the threads inside, which a forked child does not have."""
        self.__init__()  # type: ignore[misc]
