"""A pytest fixture with a fresh server for each test.

Enable it in the top ``conftest.py``::

    pytest_plugins = ["hedged_pubsub.testing.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hedged_pubsub.testing.server import PubSubServer


@pytest.fixture
def pubsub_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubServer]:
    """A running `PubSubServer`, without faults, that creates topics when they are published to.

    ``PUBSUB_EMULATOR_HOST`` leads to it during the test, so clients made in the test use it. Let
    it misbehave with `PubSubServer.set_script`; it has a relay, so every fault is available.
    """
    with PubSubServer(auto_create_topics=True, relay=True) as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        yield server
