"""Tests that are coroutine functions, each run on a virtual loop."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from .virtual_loop import VirtualLoop, virtual_loop, virtual_run


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """Make a virtual loop; a coroutine that asks for it runs on it."""
    with virtual_loop() as made:
        yield made


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function to its end."""
    test: Any = pyfuncitem.obj
    given: dict[str, Any] = pyfuncitem.funcargs
    if not inspect.iscoroutinefunction(test):
        return None
    coroutine = test(**{name: given[name] for name in inspect.signature(test).parameters})
    if "loop" in given:
        given["loop"].run_until_complete(coroutine)
    else:
        virtual_run(lambda _: coroutine)
    return True
