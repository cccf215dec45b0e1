"""The second connection has the first one's certificates and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1.services.publisher.transports import (
    PublisherGrpcAsyncIOTransport,
    PublisherGrpcTransport,
)

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import PubSubServer, TcpProxy

from ..aio.blocking import BlockingPublisher, LoopThread
from ..conftest import ONE_MESSAGE
from ..tls_server import Authority, tls_server
from .scene import SETTINGS, Scene, connections_of, publish, warm_up


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Make the authority that the tests of this module trust."""
    return Authority()


@pytest.fixture
def scene(authority: Authority) -> Iterator[Scene]:
    """Run a server with TLS behind a proxy, which does not see what passes."""
    with PubSubServer() as server, tls_server(server.address, authority) as address:
        with TcpProxy(address) as proxy:
            yield Scene(proxy=proxy, topic=server.create_topic("orders"), server=server)


def arguments_for(scene: Scene, transport: type[Any], authority: Authority) -> dict[str, Any]:
    """Return what a publisher is made with that trusts the authority."""
    credentials = grpc.ssl_channel_credentials(authority.root)

    class Trusting(transport):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**{**kwargs, "ssl_channel_credentials": credentials})

    return {
        "batch_settings": ONE_MESSAGE,
        "hedging_settings": SETTINGS,
        "transport": Trusting,
        "credentials": AnonymousCredentials(),
        "client_options": {"api_endpoint": f"localhost:{scene.proxy.port}"},
    }


def check(publisher: Any, scene: Scene) -> None:
    """Check that publishing goes on over the second connection when the first one freezes."""
    warm_up(publisher, scene)
    originals, _ = connections_of(publisher, scene)
    originals.freeze()
    latencies = publish(publisher, scene.topic, publishes=20).all()
    assert latencies[0] < 0.35
    assert max(latencies[-5:]) < SETTINGS.initial_hedge_delay
    assert scene.proxy.max_open <= 3
    originals.thaw()


def test_with_a_private_authority(scene: Scene, authority: Authority) -> None:
    """A server that only the client's own root certificate vouches for is reached twice."""
    arguments = arguments_for(scene, PublisherGrpcTransport, authority)
    with HedgedPublisher(**arguments) as publisher:
        check(publisher, scene)


def test_with_a_private_authority_on_asyncio(scene: Scene, authority: Authority) -> None:
    """The same for the asyncio publisher."""
    arguments = arguments_for(scene, PublisherGrpcAsyncIOTransport, authority)
    with LoopThread() as loop, closing(BlockingPublisher(loop, **arguments)) as publisher:
        check(publisher, scene)
