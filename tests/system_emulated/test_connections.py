"""The test of all that happens to frozen connections, with Google's emulator behind the proxy."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from google.cloud.pubsub_v1 import PublisherClient

from hedged_pubsub.testing import TcpProxy
from tests.system.conftest import Make
from tests.system.conftest import kind as kind
from tests.system.conftest import new_publisher as new_publisher
from tests.system.connections import test_frozen
from tests.system.connections.conftest import make as make
from tests.system.connections.scene import Scene


@pytest.fixture
def scene(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Put a proxy in front of the emulator; clients made meanwhile use it."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator)
    topic = f"projects/frozen/topics/topic-{uuid.uuid4().hex}"
    with PublisherClient() as admin:
        admin.create_topic(name=topic)
    with TcpProxy(emulator) as proxy:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", proxy.address)
        yield Scene(proxy=proxy, topic=topic)


@pytest.mark.slow
def test_freezes_and_thaws(scene: Scene, make: Make) -> None:
    """Publishing settles below the hedge delay after each freeze, and no connection leaks."""
    test_frozen.test_after_a_thaw_no_connection_leaks(scene, make)
