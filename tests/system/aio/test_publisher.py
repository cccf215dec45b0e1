"""``AsyncHedgedPublisher`` as a program uses it: ways in, errors, numbers, turns."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.gapic_v1.client_info import ClientInfo
from google.auth.credentials import AnonymousCredentials
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1 import PublisherAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings
from hedged_pubsub.aio import publisher as publisher_module
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from ..conftest import FAST, ONE_MESSAGE, TOPIC
from ..test_rules import OPEN, numbers, stall_originals
from .publishers import publishing, settled, until

HUNDRED = BatchSettings(max_messages=101, max_latency=60)
PATIENT = HedgingSettings(hedge_delay=10)


class Stamp(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's interceptor that adds metadata, and waits for the answer before it returns."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        stamped = [*details.metadata, ("x-stamp", type(request).__name__)]
        call = await continuation(details._replace(metadata=stamped), request)
        await call.code()
        return call


@pytest.mark.parametrize("switch", ["argument", "variable"])
async def test_with_hedging_off(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    """Batches and retries, but no header, no hedge, and no token."""
    if switch == "variable":
        monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", "1")
    script = FaultScript(faults=[Status("UNAVAILABLE", calls=[1]), Stall(0.2, calls=[2])])
    async with publishing(
        server,
        script=script,
        hedging_settings=None if switch == "argument" else FAST,
        batch_settings=BatchSettings(max_latency=0.01),
    ) as publisher:
        assert publisher.hedging_settings is None
        ids = await asyncio.gather(*(publisher.publish(TOPIC, b"data") for _ in range(3)))
        assert len(set(ids)) == 3
        stats = publisher.hedging_stats()
        assert stats == publisher.hedging_stats(TOPIC)
        assert (stats.batches, stats.attempts, stats.hedges_sent, stats.tokens) == (1, 2, 0, 0.0)
    assert numbers(server.attempts()) == [None, None]
    assert [attempt.message_count for attempt in server.attempts()] == [3, 3]


async def test_endpoints(server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """``PUBSUB_EMULATOR_HOST`` stands above credentials and client options; else those count."""
    arguments: dict[str, Any] = {
        "credentials": AnonymousCredentials(),
        "client_options": {"api_endpoint": "example.test:443"},
    }
    async with AsyncHedgedPublisher(ONE_MESSAGE, **arguments) as publisher:
        await publisher.publish(TOPIC, b"data")
        assert publisher.api_endpoint == server.address
    assert len(server.messages()) == 1
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    async with AsyncHedgedPublisher(**arguments) as publisher:
        assert publisher.api_endpoint == publisher.transport.host == "example.test:443"


@pytest.mark.parametrize("way", ["name", "class", "instance"])
async def test_transports(server: PubSubServer, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
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
        await publisher.publish(TOPIC, b"data")
        await until(settled(server))
    assert numbers(server.attempts()) == [0, 1]
    assert server.attempts()[0].outcome == "cancelled"
    for attempt in server.attempts():
        headers = dict(attempt.metadata)
        if way == "instance":
            assert headers["x-stamp"] == "PublishRequest"
        else:
            assert "shop/6.5" in str(headers["x-goog-api-client"])


async def test_the_generated_methods(server: PubSubServer) -> None:
    """Topics are created, read, listed and deleted, and their paths are made."""
    async with AsyncHedgedPublisher() as publisher:
        assert isinstance(publisher, PublisherAsyncClient)
        name = publisher.topic_path("test", "goods")
        assert (await publisher.create_topic(name=name)).name == name
        assert (await publisher.get_topic(topic=name)).name == name
        names = [topic.name async for topic in await publisher.list_topics(project="projects/test")]
        assert names == [TOPIC, name]
        await publisher.delete_topic(topic=name)
        with pytest.raises(exceptions.NotFound):
            await publisher.get_topic(topic=name)
        assert publisher.parse_topic_path(name) == {"project": "test", "topic": "goods"}


async def test_r8_a_channel_that_is_closed_meanwhile(server: PubSubServer) -> None:
    """That ends the publish with an error; it is no cancellation."""
    async with publishing(server, script=FaultScript(faults=[Stall(30)])) as publisher:
        message_id = await publisher.enqueue(TOPIC, b"data", retry=None)
        await until(server.attempts)
        await publisher.transport.close()
        with pytest.raises(exceptions.Cancelled, match="closed"):
            await asyncio.wait_for(message_id, 5)


async def test_r11_close_flushes_and_hedging_goes_on(server: PubSubServer) -> None:
    """What is in flight when the publisher is closed is hedged until it is decided."""
    async with publishing(
        server, tokens=1, script=stall_originals(), batch_settings=OPEN
    ) as publisher:
        message_id = await publisher.enqueue(TOPIC, b"data")
        closing = asyncio.ensure_future(publisher.close())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="closed publisher"):
            await publisher.enqueue(TOPIC, b"late")
        await closing
        assert message_id.done()
        assert await message_id
    assert numbers(server.attempts()) == [0, 1]
    await until(settled(server))
    assert server.attempts()[0].outcome == "cancelled"


async def test_r12_a_refused_publisher_does_not_close_the_users_transport(
    server: PubSubServer,
) -> None:
    """After the constructor raised, the transport that was passed in still works."""
    channel = grpc.aio.insecure_channel(server.address)
    transport = PublisherGrpcAsyncIOTransport(channel=channel)
    with pytest.raises(ValueError, match="hedge_delay"):
        AsyncHedgedPublisher((), PublisherOptions(timeout=0.5), transport=transport)
    async with AsyncHedgedPublisher(transport=transport) as publisher:
        assert await publisher.publish(TOPIC, b"data")


async def test_a_task_that_publishes_does_not_hold_up_the_others(server: PubSubServer) -> None:
    """Three thousand messages of one task leave others a turn for each millisecond, about."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with publishing(server, batch_settings=HUNDRED, hedging_settings=PATIENT) as publisher:
        other = asyncio.ensure_future(take_turns())
        start = time.thread_time()
        for _ in range(3_000):
            await publisher.enqueue(TOPIC, b"data")
        took = time.thread_time() - start
        other.cancel()
        # Counted in CPU time, of which a machine that is busy with others takes no more. A fifth
        # of it is a bound of five milliseconds in the mean; the constant is what bounds each turn.
        assert turns > took / publisher_module._MAX_TURN / 5
        assert publisher_module._MAX_TURN <= 0.001
        await publisher.flush(timeout=30)
    assert sum(attempt.message_count for attempt in server.attempts()) == 3_000


async def test_a_task_that_publishes_now_and_then_waits_for_nothing(server: PubSubServer) -> None:
    """``enqueue`` lets others run only after a millisecond of publishing, not at every call."""
    async with publishing(server, batch_settings=HUNDRED, hedging_settings=PATIENT) as publisher:
        for _ in range(3):
            step = publisher.enqueue(TOPIC, b"data")
            with pytest.raises(StopIteration) as finished:
                step.send(None)
            assert isinstance(finished.value.value, asyncio.Future)
            await asyncio.sleep(0.002)  # that turn is long over
        await publisher.flush()
