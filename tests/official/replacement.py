"""A pytest plugin for the official tests: puts ``HedgedPublisher`` where they find the client."""

from __future__ import annotations

import signal
from collections.abc import Generator
from typing import Any, Final, NoReturn

import pytest
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1 import publisher

from hedged_pubsub import HedgedPublisher

# A test that waits for a mock which nobody calls would wait for ever. The slowest takes 1 s.
_TIMEOUT_SECONDS: Final = 5.0


class UnhedgedPublisher(HedgedPublisher):
    """Hedging is off unless a test asks for it, and none does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"hedging_settings": None, **kwargs})


class HurriedPublisher(HedgedPublisher):
    """Hedging is on; the end of the run does not wait for what cannot be sent anyway."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, exit_timeout=0, **kwargs)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says what the tests get."""
    parser.addoption("--hedging", choices=("off", "on"), required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Replace the names before the test modules import them."""
    client = HurriedPublisher if config.getoption("--hedging") == "on" else UnhedgedPublisher
    pubsub_v1.PublisherClient = client
    publisher.Client = client
    publisher.client.Client = client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """End a test that takes too long."""
    signal.signal(signal.SIGALRM, _time_out)
    signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _time_out(*_: object) -> NoReturn:
    pytest.fail(f"the test takes more than {_TIMEOUT_SECONDS:g} s")
