"""``AsyncHedgedPublisher`` as a program uses it: construction, ways in, errors, numbers."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.api_core import exceptions
from google.api_core.gapic_v1.client_info import ClientInfo
from google.api_core.retry import AsyncRetry, Retry
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1 import PublisherAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings, HedgingStats
from hedged_pubsub.retry import AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from ..conftest import FAST, ONE_MESSAGE
from ..test_rules import numbers, stall_originals
from .publishers import publishing, settled, until


class Stamp(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's interceptor that adds metadata."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        stamped = [*details.metadata, ("x-stamp", type(request).__name__)]
        return await continuation(details._replace(metadata=stamped), request)


async def test_a_thousand_messages_in_batches_of_a_hundred(
    server: PubSubServer, topic: str
) -> None:
    """They take ten or eleven requests: as officially, batches of 100 hold 99 messages."""
    async with publishing(
        server, batch_settings=BatchSettings(max_messages=100, max_latency=5)
    ) as publisher:
        message_ids = [await publisher.enqueue(topic, b"%d" % n) for n in range(1000)]
        await publisher.flush(timeout=10)
        ids = [message_id.result() for message_id in message_ids]
    assert len(server.attempts()) == 11
    stored = {message.message_id: message.data for message in server.messages()}
    assert [stored[message_id] for message_id in ids] == [b"%d" % n for n in range(1000)]


async def test_data_and_attributes(server: PubSubServer, topic: str) -> None:
    """What is published is what is stored; text and UTF-8 bytes are attributes."""
    async with publishing(server) as publisher:
        await publisher.publish(topic, b"\x00\xff", colour="blue", text="h\u00e9\u2713".encode())
        await publisher.publish(topic, b"", empty="")
        for data, attributes in (("text", {}), (b"data", {"number": 1})):
            with pytest.raises(TypeError, match="must be sent as"):
                await publisher.publish(topic, data, **attributes)  # type: ignore[arg-type]
    first, second = server.messages()
    assert first.data == b"\x00\xff"
    assert first.attributes == (("colour", "blue"), ("text", "h\u00e9\u2713"))
    assert (second.data, second.attributes) == (b"", (("empty", ""),))


@pytest.mark.parametrize("switch", ["argument", "variable"])
async def test_with_hedging_off(
    server: PubSubServer, topic: str, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """Batches and retries, but no header, no hedge, and no token."""
    if switch == "variable":
        monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", "1")
    script = FaultScript(faults=[Status("UNAVAILABLE", calls=[1]), Stall(0.4, calls=[2])])
    async with publishing(
        server,
        script=script,
        hedging_settings=None if switch == "argument" else FAST,
        batch_settings=BatchSettings(max_latency=0.01),
    ) as publisher:
        assert publisher.hedging_settings is None
        ids = await asyncio.gather(*(publisher.publish(topic, b"data") for _ in range(3)))
        assert len(set(ids)) == 3
        stats = publisher.hedging_stats()
        assert stats == publisher.hedging_stats(topic)
        assert (stats.batches, stats.attempts, stats.hedges_sent, stats.tokens) == (1, 2, 0, 0.0)
    assert numbers(server.attempts()) == [None, None]
    assert [attempt.message_count for attempt in server.attempts()] == [3, 3]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("settings", [1.0, "on", True, {"hedge_delay": 1}], ids=repr)
async def test_hedging_settings_of_another_type(settings: Any) -> None:
    """Anything but settings or ``None`` is a TypeError that says so."""
    with pytest.raises(TypeError, match="hedging_settings must be a HedgingSettings, or None"):
        AsyncHedgedPublisher(hedging_settings=settings)


async def test_missing_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials the constructor raises what the official client raises."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(DefaultCredentialsError):
        AsyncHedgedPublisher()


async def test_a_topic_that_does_not_exist(server: PubSubServer, topic: str) -> None:
    """The error is NOT_FOUND, caused by the gRPC error; the next publish works."""
    async with publishing(server) as publisher:
        with pytest.raises(exceptions.NotFound) as raised:
            await publisher.publish(server.topic_path("missing"), b"data")
        assert isinstance(raised.value.__cause__, grpc.aio.AioRpcError)
        assert await publisher.publish(topic, b"data")


async def test_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes within the request's timeout, and no hedge hammers a closed port."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{unused.getsockname()[1]}")
    async with AsyncHedgedPublisher(ONE_MESSAGE, hedging_settings=FAST) as publisher:
        called = time.monotonic()
        with pytest.raises(exceptions.ServiceUnavailable):
            await publisher.publish("projects/p/topics/t", b"data", retry=None, timeout=1.0)
        assert time.monotonic() - called < 1.2
        assert publisher.hedging_stats().hedges_sent == 0


@pytest.mark.parametrize(
    "retry",
    [
        Retry(initial=0.01, maximum=0.01),
        AsyncRetry(initial=0.01, maximum=0.01),
        TruncatedExponentialBackoff(maximum_backoff=0.01),
        AsyncTruncatedExponentialBackoff(maximum_backoff=0.01),
    ],
    ids=lambda retry: type(retry).__name__,
)
@pytest.mark.parametrize("place", ["options", "call"])
async def test_retries(server: PubSubServer, topic: str, retry: Any, place: str) -> None:
    """Both kinds of retry are followed, from the options and from the call."""
    options = PublisherOptions(retry=retry if place == "options" else None)
    arguments = {"retry": retry} if place == "call" else {}
    script = FaultScript(faults=[Status("UNAVAILABLE", times=2)])
    async with publishing(server, script=script, publisher_options=options) as publisher:
        assert await publisher.publish(topic, b"data", **arguments)
        assert publisher.hedging_stats().batches == 1
    assert [attempt.code for attempt in server.attempts()] == ["UNAVAILABLE", "UNAVAILABLE", None]


async def test_the_calls_timeout_and_retry_come_first(server: PubSubServer, topic: str) -> None:
    """``retry=None`` of a call is no retry although the options have one; so is the timeout."""
    options = PublisherOptions(retry=Retry(initial=0.01), timeout=20.0)
    script = FaultScript(faults=[Status("UNAVAILABLE", calls=[1])])
    async with publishing(server, script=script, publisher_options=options) as publisher:
        with pytest.raises(exceptions.ServiceUnavailable):
            await publisher.publish(topic, b"data", retry=None)
        await publisher.publish(topic, b"data")
        await publisher.publish(topic, b"data", timeout=7.0)
    timeouts = [attempt.timeout for attempt in server.attempts()]
    assert timeouts == pytest.approx([20, 20, 7], abs=0.5)


async def test_the_emulator_comes_first(server: PubSubServer, topic: str) -> None:
    """``PUBSUB_EMULATOR_HOST`` stands above credentials and client options."""
    async with AsyncHedgedPublisher(
        ONE_MESSAGE,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": "localhost:1"},
    ) as publisher:
        await publisher.publish(topic, b"data")
        assert publisher.api_endpoint == server.address
    assert len(server.messages()) == 1


async def test_client_options_and_client_info(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the emulator's variable the endpoint is the options'."""
    async with AsyncHedgedPublisher(
        credentials=AnonymousCredentials(), client_options={"api_endpoint": "example.test:443"}
    ) as publisher:
        assert publisher.api_endpoint == "example.test:443"
        assert publisher.transport.host == "example.test:443"


@pytest.mark.parametrize("way", ["name", "class", "instance"])
async def test_transports(
    server: PubSubServer, topic: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whichever way the transport is given, a slow publish is hedged over it."""
    channel = grpc.aio.insecure_channel(server.address, interceptors=[Stamp()])
    transport: Any = {
        "name": "grpc_asyncio",
        "class": PublisherGrpcAsyncIOTransport,
        "instance": PublisherGrpcAsyncIOTransport(channel=channel),
    }[way]
    info = ClientInfo(client_library_version="9.8.7", user_agent="shop/6.5")
    arguments: dict[str, Any] = {} if way == "instance" else {"client_info": info}
    async with publishing(
        server, tokens=1, script=stall_originals(), transport=transport, **arguments
    ) as publisher:
        await publisher.publish(topic, b"data")
        await until(settled(server))
    assert numbers(server.attempts()) == [0, 1]
    assert server.attempts()[0].outcome == "cancelled"
    for attempt in server.attempts():
        headers = dict(attempt.metadata)
        if way == "instance":
            assert headers["x-stamp"] == "PublishRequest"
        else:
            assert "shop/6.5" in str(headers["x-goog-api-client"])


# Older releases of gRPC stumble over the call when they let go of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_interceptor_that_raises(server: PubSubServer, topic: str) -> None:
    """The publish fails with the interceptor's error, at once."""

    class Raise(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, *_: Any) -> Any:
            raise ZeroDivisionError

    channel = grpc.aio.insecure_channel(server.address, interceptors=[Raise()])
    transport = PublisherGrpcAsyncIOTransport(channel=channel)
    async with AsyncHedgedPublisher(ONE_MESSAGE, transport=transport) as publisher:
        with pytest.raises(ZeroDivisionError):
            await publisher.publish(topic, b"data")


async def test_the_generated_methods(server: PubSubServer) -> None:
    """Topics are created, read, listed and deleted, and their paths are made."""
    async with AsyncHedgedPublisher() as publisher:
        assert isinstance(publisher, PublisherAsyncClient)
        name = publisher.topic_path("test", "goods")
        assert (await publisher.create_topic(name=name)).name == name
        assert (await publisher.get_topic(topic=name)).name == name
        names = [topic.name async for topic in await publisher.list_topics(project="projects/test")]
        assert names == [name]
        await publisher.delete_topic(topic=name)
        with pytest.raises(exceptions.NotFound):
            await publisher.get_topic(topic=name)
        assert publisher.parse_topic_path(name) == {"project": "test", "topic": "goods"}


@pytest.fixture(scope="module")
def account() -> Mapping[str, str]:
    """Make the key of a service account that does not exist."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "test",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "shop@test.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": "https://localhost:1/token",
    }


@pytest.mark.parametrize("source", ["file", "json", "info"])
async def test_service_accounts(account: Mapping[str, str], tmp_path: Path, source: str) -> None:
    """Each of the three ways to a service account makes a hedging publisher with its key."""
    given: Any = account
    if source != "info":
        given = tmp_path / "key.json"
        given.write_text(json.dumps(account), encoding="utf-8")
    make = getattr(AsyncHedgedPublisher, f"from_service_account_{source}")
    async with make(given, ONE_MESSAGE, hedging_settings=FAST) as publisher:
        assert type(publisher) is AsyncHedgedPublisher
        assert publisher.hedging_settings == FAST
        credentials: Any = publisher.transport._credentials
        assert credentials.service_account_email == account["client_email"]


async def test_the_stats_agree_with_the_server(server: PubSubServer, topic: str) -> None:
    """What the publisher counts is what the server saw."""
    script = FaultScript(faults=[Stall(30, attempts=[0], calls=[1, 5, 9])])
    async with publishing(server, tokens=5, script=script) as publisher:
        before = publisher.hedging_stats()
        for _ in range(10):
            await publisher.publish(topic, b"data")
        await until(settled(server))
        stats = publisher.hedging_stats(topic)
    attempts = server.attempts()
    sent = stats.hedges_sent - before.hedges_sent
    assert stats.attempts - before.attempts == len(attempts) == 10 + sent
    assert sent == sum(bool(attempt.attempt_number) for attempt in attempts) >= 3
    cancelled = stats.attempts_cancelled - before.attempts_cancelled
    assert cancelled == sum(attempt.outcome == "cancelled" for attempt in attempts)
    assert stats.batches - before.batches == 10
    assert publisher.hedging_stats("never seen") == HedgingStats()


@pytest.mark.usefixtures("server")
async def test_stats_of_a_new_publisher() -> None:
    """Nothing was done yet, and the bucket starts empty."""
    async with AsyncHedgedPublisher() as publisher:
        assert publisher.hedging_stats() == HedgingStats()
        assert publisher.hedging_settings == HedgingSettings()


@pytest.mark.parametrize("interceptors", [[], [Stamp()]], ids=["", "a user's interceptor"])
async def test_debug_logging_tells_no_payload(
    server: PubSubServer, topic: str, caplog: pytest.LogCaptureFixture, interceptors: list[Any]
) -> None:
    """With the official client's DEBUG logging on, publishing is as fast and says nothing."""
    channel = grpc.aio.insecure_channel(server.address, interceptors=interceptors)
    transport = PublisherGrpcAsyncIOTransport(channel=channel)
    async with publishing(
        server, tokens=1, script=stall_originals(), transport=transport
    ) as publisher:
        with caplog.at_level(logging.DEBUG):
            await asyncio.wait_for(publisher.publish(topic, b"secret payload"), 1)
            await publisher.get_topic(topic=topic)
            await asyncio.sleep(0.01)
    payload = base64.b64encode(b"secret payload").decode()
    if hasattr(transport, "_interceptor"):  # older releases log nothing
        assert "GetTopic" in caplog.text, "the other methods are logged as ever"
    assert "Publisher/Publish" not in caplog.text
    assert not [r for r in caplog.records if payload in str(vars(r).get("request", ""))]


async def test_publishing_from_a_done_callback(server: PubSubServer, topic: str) -> None:
    """A callback on an awaitable may publish; a callback that raises harms no other message."""
    batch = BatchSettings(max_messages=4, max_latency=0.01)
    async with publishing(server, batch_settings=batch) as publisher:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        old = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
        more: list[asyncio.Task[str]] = []
        first, second, third = [await publisher.enqueue(topic, b"data") for _ in range(3)]
        first.add_done_callback(lambda _: 1 / 0)
        second.add_done_callback(
            lambda _: more.append(loop.create_task(publisher.publish(topic, b"more")))
        )
        assert await third
        await asyncio.sleep(0)
        assert await more[0]
        loop.set_exception_handler(old)
        assert [e for e in reported if isinstance(e, ZeroDivisionError)]
    assert len(server.messages()) == 4
