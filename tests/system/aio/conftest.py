"""Tests that are coroutines; and those that are not are about the asyncio publisher, too."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

import pytest

from .publishers import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on an event loop of its own."""
    test: Callable[..., Awaitable[None]] = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    run(lambda: test(**arguments))
    return True


@pytest.fixture
def kind() -> str:
    """Return which kind of publisher the tests here are about."""
    return "asyncio"
