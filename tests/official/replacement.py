"""A pytest plugin for the official tests: puts ``HedgedPublisher`` where they find the client."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1 import publisher

from hedged_pubsub import HedgedPublisher


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says what the tests get."""
    parser.addoption("--hedging", choices=("off", "on"), required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Replace the names before the test modules import them."""
    # The end of a run with hedging does not wait for what cannot be sent anyway.
    hedging_is_on = config.getoption("--hedging") == "on"
    defaults = {"exit_timeout": 0} if hedging_is_on else {"hedging_settings": None}

    class Replacement(HedgedPublisher):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**defaults, **kwargs})

    pubsub_v1.PublisherClient = Replacement
    publisher.Client = Replacement
    publisher.client.Client = Replacement
