"""An event loop on virtual time: when all wait, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EAGER = "eager" if sys.version_info >= (3, 12) else None
"""The name of the other way to run tasks, where it exists."""


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: reports what is ready and lets the time pass that it was to wait."""

    def __init__(self, let_pass: Callable[[float], None]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready."""
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("all tasks wait, and no timer is set")
            self._let_pass(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at zero and passes only while everything waits."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self._let_pass))

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self.now

    def _let_pass(self, seconds: float) -> None:
        self.now += seconds

    @property
    def timers(self) -> int:
        """How many timers are set."""
        scheduled: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009
        return sum(not timer.cancelled() for timer in scheduled)


def virtual_run(
    main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, tasks: str | None = "lazy"
) -> T:
    """Run a coroutine function to its end on a virtual loop, and close the loop.

    Whatever the loop is told of that went wrong is raised.

    Args:
        main: Gets the loop.
        tasks: How tasks begin: ``"lazy"`` in the next turn, ``EAGER`` at once.
    """
    loop = VirtualLoop()
    loop.set_debug(True)
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    if tasks == "eager":
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    try:
        result = loop.run_until_complete(main(loop))
        assert not asyncio.all_tasks(loop), "a task was left behind"
    finally:
        loop.close()
    assert not problems
    return result
