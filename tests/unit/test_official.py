"""Contracts: what this package touches of the official client's private parts is as it expects.

So the second channel is made by the same call as the client's own, and the telemetry header has
the bytes that other clients send. These run at the lowest and the newest supported releases.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.api_core import client_options, exceptions, grpc_helpers, grpc_helpers_async
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherAsyncClient, types
from google.pubsub_v1.services.publisher.transports import (
    PublisherGrpcAsyncIOTransport as PublisherAsyncTransport,
)
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub import HedgedPublisher
from hedged_pubsub._google import official
from hedged_pubsub._google.channels import second_channel
from hedged_pubsub._google.intercepted import InterceptedCalls, noting
from hedged_pubsub._google.method import encode_telemetry
from hedged_pubsub._google.official import call_arguments, connect

TOPIC = "projects/test/topics/a topic"


@pytest.fixture
def transport() -> Iterator[PublisherGrpcTransport]:
    """Make a transport whose server does not exist."""
    made = PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1"))
    yield made
    made.close()


def test_publish_defaults(transport: PublisherGrpcTransport) -> None:
    """The generated method's defaults are found, and are what the documentation says."""
    retry, timeout = official.publish_defaults(transport)
    assert retry is not None
    assert timeout == 60
    assert retry._timeout == official.TOTAL_TIMEOUT
    assert retry._predicate(exceptions.ServiceUnavailable("down"))
    assert retry._predicate(exceptions.Cancelled("by the server"))
    assert not retry._predicate(exceptions.PermissionDenied("no"))


def test_the_asyncio_publisher_has_the_same_defaults() -> None:
    """Though the generated asyncio client retries for a minute only; the rest of it is its own."""

    async def main() -> tuple[Any, object]:
        transport = PublisherAsyncTransport(channel=grpc.aio.insecure_channel("127.0.0.1:1"))
        try:
            return official.publish_defaults(transport)
        finally:
            await transport.close()

    retry, timeout = asyncio.run(main())
    assert (retry._timeout, timeout) == (official.TOTAL_TIMEOUT, 60)
    assert retry._predicate(exceptions.ServiceUnavailable("down"))


def test_call_arguments(transport: PublisherGrpcTransport) -> None:
    """The metadata is that of the official client; its method is the same as before."""
    method = transport._wrapped_methods[transport.publish]
    before = dict(vars(method))
    arguments = dict(call_arguments(transport, TOPIC))
    metadata = dict(arguments.pop("metadata"))
    assert arguments == {}
    assert metadata.pop("x-goog-request-params") == "topic=projects/test/topics/a+topic"
    assert metadata.pop("x-goog-api-client").startswith("gl-python/")
    assert metadata == {}
    assert vars(method) == before
    with pytest.raises(exceptions.ServiceUnavailable):
        method({"topic": TOPIC}, retry=None, timeout=1.0)


class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Does nothing."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details, request)


def test_interceptors_are_noticed(transport: PublisherGrpcTransport) -> None:
    """A channel with an interceptor is not a plain one."""
    assert official.is_plain_channel(transport.grpc_channel)
    assert not official.is_plain_channel(
        grpc.intercept_channel(transport.grpc_channel, Interceptor())
    )


def test_the_publish_signature_is_the_official_one() -> None:
    """Positional arguments mean the same."""
    ours, theirs = (
        [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
        for method in (HedgedPublisher.publish, pubsub_v1.PublisherClient.publish)
    )
    assert ours == theirs


@pytest.mark.parametrize("intercepted", [False, True])
def test_connecting_without_a_call(intercepted: bool) -> None:
    """A channel connects, and says so; one that cannot, or was closed, is not connected."""

    def channel_to(port: int) -> grpc.Channel:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        return grpc.intercept_channel(channel, Interceptor()) if intercepted else channel

    def connects(channel: grpc.Channel, polls: int) -> bool:
        return any(connect(channel) or pause.wait(0.01) for _ in range(polls))

    pause = threading.Event()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = channel_to(port)
    assert connects(channel, 500)
    channel.close()
    assert not connect(channel)
    server.stop(None).wait()
    with channel_to(port) as unanswered:
        assert not connects(unanswered, 20)


# --- The second channel.


LOCAL_POOL = ("grpc.use_local_subchannel_pool", 1)
KINDS: Any = {
    "grpc": (pubsub_v1.PublisherClient, PublisherGrpcTransport, grpc_helpers, grpc),
    "grpc_asyncio": (PublisherAsyncClient, PublisherAsyncTransport, grpc_helpers_async, grpc.aio),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["default", "name", "class"])
def test_it_differs_in_two_options(kind: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host, credentials, scopes, quota project and most options are the client's.

    With mutual TLS, so is the certificate that the client worked out.
    """
    client, transport, helpers, grpc_module = KINDS[kind]
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    certificates = iter([(b"certificate", b"key")])
    options = client_options.ClientOptions(
        api_endpoint="pubsub.example.org:8443",
        quota_project_id="payer",
        scopes=["https://www.googleapis.com/auth/pubsub"],
        client_cert_source=lambda: next(certificates),
    )
    arguments: dict[str, Any] = {
        "transport": {"default": None, "name": kind, "class": transport}[by],
        "credentials": AnonymousCredentials(),
        "client_options": options,
    }
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    async def main() -> None:  # a channel of asyncio needs a loop
        channel = grpc_module.insecure_channel("127.0.0.1:1")

        def create_channel(*args: Any, **kwargs: Any) -> Any:
            made.append((args, kwargs))
            return channel

        monkeypatch.setattr(helpers, "create_channel", create_channel)
        make_channel = second_channel(arguments, transport, grpc_module.insecure_channel)
        assert make_channel is not None
        publisher = client(**arguments)
        assert isinstance(publisher.transport, transport)
        assert type(publisher.transport).__name__ == transport.__name__
        make_channel()
        if closing := channel.close():
            await closing

    asyncio.run(main())
    (first_args, first), (second_args, second) = made
    assert second_args == first_args
    own, clients = dict(second.pop("options")), dict(first.pop("options"))
    assert own.pop(LOCAL_POOL[0]) == LOCAL_POOL[1]
    assert own == clients | {"grpc.min_reconnect_backoff_ms": 1000}
    assert clients["grpc.max_reconnect_backoff_ms"] == 250
    assert second["credentials"] is first["credentials"], "or each would fetch a token"
    assert second == first
    assert first_args[0] == "pubsub.example.org:8443"
    assert first["quota_project_id"] == "payer"
    assert first["scopes"] == ["https://www.googleapis.com/auth/pubsub"]
    assert first["ssl_credentials"] is second["ssl_credentials"] is not None
    assert not list(certificates), "it was loaded"


# --- The telemetry header (R10).


_TELEMETRY: Any = getattr(types, "PubsubClientTelemetry", None)


@pytest.mark.parametrize(
    ("attempt", "start_time", "value"),
    [
        (0, None, "CgA="),
        (1, None, "CgIIAQ=="),
        (2, None, "CgIIAg=="),
        (0, 1700000000.5, "Cg4SDAiA4s+qBhCAyrXuAQ=="),
        (2, 1700000000.5, "ChAIAhIMCIDiz6oGEIDKte4B"),
    ],
)
def test_golden_values(attempt: int, start_time: float | None, value: str) -> None:
    """The values that Google's other clients send for the same attempt."""
    assert encode_telemetry(attempt, start_time) == value


@pytest.mark.skipif(_TELEMETRY is None, reason="this google-cloud-pubsub has no such type yet")
@given(
    attempt=st.integers(0, 2**31 - 1),
    start_time=st.none() | st.floats(0, 2**33, allow_nan=False),
)
def test_it_is_what_the_generated_type_makes(attempt: int, start_time: float | None) -> None:
    """The official type reads it, and writes the same bytes."""
    encoded = base64.b64decode(encode_telemetry(attempt, start_time))
    message = _TELEMETRY.deserialize(encoded)
    assert message.publish_operation.hedged_attempt_count == attempt
    if start_time is not None:
        read = message.publish_operation.publish_start_time.timestamp()
        assert read == pytest.approx(start_time, abs=1e-5)
    assert _TELEMETRY.serialize(message) == encoded


def test_a_call_that_an_interceptor_starts_too_late_is_cancelled() -> None:
    """Its attempt may lose while the interceptor has not come to send it."""

    class Sent:
        cancellations = 0

        def cancel(self) -> None:
            self.cancellations += 1

    calls, early, late = InterceptedCalls(), Sent(), Sent()
    calls.add(early)
    assert early.cancellations == 0
    calls.cancel()
    calls.add(late)
    assert (early.cancellations, late.cancellations) == (1, 1)


def test_noting_calls_leaves_the_channel_as_it_was(transport: PublisherGrpcTransport) -> None:
    """It may be shared; and one whose copy would close it when dropped is left alone."""

    class Owner:
        def __init__(self, channel: grpc.Channel) -> None:
            self._channel = channel

        def __del__(self) -> None:
            self._channel.close()

    channel = grpc.intercept_channel(transport.grpc_channel, Interceptor())
    noting(channel)
    assert channel._channel is transport.grpc_channel
    owner = Owner(channel)
    assert noting(owner) is owner
