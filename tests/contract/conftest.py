"""Two servers that must behave alike, Google's emulator and ours, and publishers for either."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import grpc
import pytest
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import PubSubServer

# With the emulator comes the rule that its tests are not skipped where it is installed.
from tests.system_emulated.conftest import emulator as emulator
from tests.system_emulated.conftest import pytest_runtest_makereport as pytest_runtest_makereport

_PROJECT: Final = "projects/contract"

MakePublisher = Callable[..., HedgedPublisher]


@pytest.fixture(scope="session")
def own_server() -> Iterator[str]:
    """The address of a running ``PubSubServer``, which is in a process of its own."""
    with PubSubServer(process=True) as server:
        yield server.address


@pytest.fixture(params=["own_server", "emulator"])
def peer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the server under test, which every client that a test creates uses."""
    address: str = request.getfixturevalue(request.param)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
    return address


@pytest.fixture
def subscriber(peer: str) -> Iterator[SubscriberClient]:
    """An official subscriber client."""
    # On a channel of its own, because the one that the client makes for an emulator takes no more
    # than 4 MB, unlike the one to the service.
    channel = grpc.insecure_channel(peer, [("grpc.max_receive_message_length", -1)])
    with SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)) as client:
        yield client


@pytest.fixture(params=[None, HedgingSettings()], ids=["hedging_off", "hedging_on"])
def make_publisher(peer: str, request: pytest.FixtureRequest) -> Iterator[MakePublisher]:
    """Makes publishers, with hedging and without, and closes them after the test."""
    with ExitStack() as stack:

        def make(*arguments: Any, **keywords: Any) -> HedgedPublisher:
            publisher = HedgedPublisher(*arguments, hedging_settings=request.param, **keywords)
            stack.callback(publisher.close, timeout=60)
            return publisher

        yield make


@pytest.fixture
def topic(peer: str) -> str:
    """The full path of a new topic."""
    path = f"{_PROJECT}/topics/topic-{uuid.uuid4().hex}"
    publisher = PublisherClient()
    publisher.create_topic(name=path)
    publisher.transport.close()
    return path


@pytest.fixture
def subscription(subscriber: SubscriberClient, topic: str) -> str:
    """The full path of a new subscription to the topic, which gets all that is published to it."""
    path = f"{_PROJECT}/subscriptions/subscription-{uuid.uuid4().hex}"
    subscriber.create_subscription(name=path, topic=topic)
    return path
