"""An event loop on virtual time: when all wait, time jumps to the next timer."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

EAGER = pytest.param(
    "eager",
    id="eager",
    marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks before 3.12"),
)
"""The other way to run tasks, where it exists, as the parameter of a fixture."""


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: reports what is ready and lets the time pass that it was to wait."""

    def __init__(self, let_pass: Callable[[float], None]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
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
        return self.now

    def _let_pass(self, seconds: float) -> None:
        self.now += seconds

    @property
    def timers(self) -> int:
        """How many timers are set."""
        scheduled: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009
        return sum(not timer.cancelled() for timer in scheduled)

    def run(self, awaitable: Awaitable[T]) -> T:
        """Run the loop until this is done, and a few turns more."""

        async def wait() -> T:
            try:
                return await awaitable
            finally:
                await turns()

        return self.run_until_complete(wait())

    def let_pass(self, seconds: float = 0.0) -> None:
        """Let time pass, and what is ready then happen."""
        self.run(asyncio.sleep(seconds))


async def turns(count: int = 5) -> None:
    """Let the loop go round so often, which takes no virtual time."""
    for _ in range(count):
        await asyncio.sleep(0)


@contextlib.contextmanager
def virtual_loop(tasks: str = "lazy") -> Iterator[VirtualLoop]:
    """Make a virtual loop and close it; raise in the end what it was told of that went wrong.

    Tasks begin at once if they are to be ``"eager"``, else in the next turn.
    """
    loop = VirtualLoop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    if tasks == "eager":
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009
    try:
        yield loop
        assert not asyncio.all_tasks(loop), "a task was left behind"
    finally:
        loop.close()
    assert not problems, problems


def virtual_run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function, which gets the loop, to its end on a virtual loop."""
    with virtual_loop() as loop:
        return loop.run_until_complete(main(loop))
