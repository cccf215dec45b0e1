"""The second connection has the first one's certificates and credentials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.pubsub_v1.services.publisher.transports import (
    PublisherGrpcAsyncIOTransport,
    PublisherGrpcTransport,
)

from hedged_pubsub.testing import PubSubServer, TcpProxy

from ..conftest import Make
from ..tls_server import Authority, tls_server
from ..tls_server import authority as authority
from .scene import Scene, connections_of


@pytest.fixture
def scene(authority: Authority) -> Iterator[Scene]:
    """Run a server with TLS behind a proxy, which does not see what passes."""
    with PubSubServer() as server, tls_server(server.address, authority) as address:
        with TcpProxy(address) as proxy:
            yield Scene(proxy=proxy, topic=server.create_topic("orders"))


def test_with_a_private_authority(
    scene: Scene, make: Make, authority: Authority, kind: str
) -> None:
    """A server that only the client's own root certificate vouches for is reached twice."""
    transport: Any = PublisherGrpcTransport if kind == "sync" else PublisherGrpcAsyncIOTransport
    credentials = grpc.ssl_channel_credentials(authority.root)

    class Trusting(transport):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**{**kwargs, "ssl_channel_credentials": credentials})

    publisher = make(
        transport=Trusting,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": f"localhost:{scene.proxy.port}"},
    )
    originals, _ = connections_of(publisher, scene)
    originals.freeze()
    publisher.publish(scene.topic, b"data").result(timeout=10)
