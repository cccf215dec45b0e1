"""The tests of frozen connections, with Google's emulator behind the proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hedged_pubsub.testing import TcpProxy
from tests.system.connections.conftest import make_publisher as make_publisher
from tests.system.connections.scene import Scene
from tests.system.connections.test_frozen import (
    test_after_a_thaw_no_connection_leaks as test_after_a_thaw_no_connection_leaks,
)
from tests.system.connections.test_frozen import (
    test_publishing_settles_below_the_hedge_delay as test_publishing_settles_below_the_hedge_delay,
)
from tests.system.connections.test_frozen import (
    test_the_official_client_answers_nothing as test_the_official_client_answers_nothing,
)


@pytest.fixture
def scene(emulator: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Put a proxy in front of the emulator; clients made meanwhile use it."""
    with TcpProxy(emulator) as proxy:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", proxy.address)
        yield Scene(proxy=proxy, topic=topic)
