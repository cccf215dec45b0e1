"""A bare gRPC client for Publish: no batching, no retries, one channel of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub.testing import PubSubServer, pytest_plugin

ORIGINAL = (("x-goog-pubsub-client-telemetry", "CgA="),)
FIRST_HEDGE = (("x-goog-pubsub-client-telemetry", "CgIIAQ=="),)

relayed = pytest_plugin.pubsub_server
"""A server behind a relay: the fixture that users get."""


class RawClient:
    """Publishes over one connection that no other client shares."""

    def __init__(self, channel: grpc.Channel, topic: str) -> None:
        self._method: Any = PublisherGrpcTransport(channel=channel).publish
        self._topic = topic

    def start(
        self,
        *bodies: bytes | dict[str, Any],
        topic: str | None = None,
        timeout: float | None = 20.0,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> Any:
        """Start a call and return it."""
        messages = [b if isinstance(b, dict) else {"data": b} for b in bodies]
        request = types.PublishRequest(topic=topic or self._topic, messages=messages)
        return self._method.future(request, timeout=timeout, metadata=metadata)

    def publish(self, *bodies: bytes | dict[str, Any], **arguments: Any) -> list[str]:
        """Return the message ids, or raise `grpc.RpcError`."""
        return list(self.start(*bodies, **arguments).result().message_ids)


@contextmanager
def raw_client(server: PubSubServer) -> Iterator[RawClient]:
    """Make a client that connects with its first call."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield RawClient(channel, server.topic_path("orders"))


@pytest.fixture
def client(server: PubSubServer, topic: str) -> Iterator[RawClient]:
    """Make a client; its topic exists."""
    with raw_client(server) as made:
        yield made


@contextmanager
def fails(code: str) -> Iterator[None]:
    """Expect a call to fail with this status."""
    with pytest.raises(grpc.RpcError) as raised:
        yield
    assert raised.value.code() is grpc.StatusCode[code]


def outcomes(server: PubSubServer) -> list[str]:
    """Return how the attempts ended, in order of arrival."""
    return [attempt.outcome for attempt in server.attempts()]


def bodies(server: PubSubServer) -> list[bytes]:
    """Return the stored bodies, in order."""
    return [message.data for message in server.messages()]
