"""Closing: it ends, once for all who wait for it, and leaves nothing pending or open (R8)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import grpc.aio
import pytest
from google.auth.exceptions import RefreshError
from google.cloud.pubsub_v1.types import BatchSettings
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub import AsyncHedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

from ..conftest import FAST, ONE_MESSAGE, TOPIC
from ..test_flow_control import BLOCK, limited
from .publishers import publishing, settled, until

SLOW = FaultScript(latency=Fixed(0.2))
STUCK = FaultScript(faults=[Stall(30)])

on_and_off = pytest.mark.usefixtures("_on_and_off")


@pytest.fixture(params=["hedging on", "hedging off"])
def _on_and_off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test run once more with hedging turned off as operators do it."""
    if request.param == "hedging off":
        monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", "1")


@on_and_off
async def test_every_close_waits_for_the_answers(server: PubSubServer) -> None:
    """Three at once return when all is stored and the channel is closed, and so does a fourth."""
    channel = grpc.aio.insecure_channel(server.address)
    transport = PublisherGrpcAsyncIOTransport(channel=channel)
    async with publishing(server, script=SLOW, transport=transport) as publisher:
        message_ids = [await publisher.enqueue(TOPIC, b"data") for _ in range(5)]
        await until(server.attempts)

        async def close() -> None:
            await publisher.close()
            assert all(message_id.done() for message_id in message_ids)
            assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN

        await asyncio.gather(*(close() for _ in range(3)))
        await close()
    assert len(server.messages()) == 5


@on_and_off
async def test_close_with_a_timeout_leaves_nothing_pending(server: PubSubServer) -> None:
    """Messages under way, in an open batch, and waiting for flow control: all get an error."""
    async with publishing(
        server,
        script=STUCK,
        batch_settings=BatchSettings(max_messages=4, max_latency=60),
        publisher_options=limited(BLOCK, messages=5),
    ) as publisher:
        message_ids = [await publisher.enqueue(TOPIC, b"data") for _ in range(5)]
        waiting = [asyncio.ensure_future(publisher.publish(TOPIC, b"data")) for _ in range(3)]
        await until(server.attempts)
        with pytest.raises(asyncio.TimeoutError, match="5 of 5 messages"):
            await publisher.close(timeout=0.1)
        assert all(isinstance(message_id.exception(), RuntimeError) for message_id in message_ids)
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert all("closed publisher" in str(result) for result in results)
        await until(settled(server))


@on_and_off
@pytest.mark.parametrize("what", ["refresh error", "closed channel"])
# Older releases of gRPC stumble over the call when they let go of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_is_no_answer_ends_the_publish(server: PubSubServer, what: str) -> None:
    """Errors that no service sends get to the awaitable, and leaving the block ends."""

    class Refuse(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, *_: Any) -> Any:
            raise RefreshError("the token cannot be refreshed")

    interceptors = [Refuse()] if what == "refresh error" else []
    channel = grpc.aio.insecure_channel(server.address, interceptors=interceptors)

    async def main() -> None:
        async with AsyncHedgedPublisher(
            ONE_MESSAGE,
            hedging_settings=FAST,
            transport=PublisherGrpcAsyncIOTransport(channel=channel),
        ) as publisher:
            if what == "closed channel":
                await channel.close()
            message_ids = [await publisher.enqueue(TOPIC, b"data") for _ in range(3)]
            for message_id in message_ids:
                with pytest.raises(RefreshError if interceptors else grpc.aio.UsageError):
                    await message_id

    await asyncio.wait_for(main(), 5)


@on_and_off
async def test_closing_is_cancelled_at_any_time(server: PubSubServer) -> None:
    """Fifty publishers that somebody gives up on: everything ends, and no request is left."""
    moments = random.Random(1)
    for _ in range(50):
        async with publishing(server, script=FaultScript(latency=Fixed(0.003))) as publisher:
            message_ids = [await publisher.enqueue(TOPIC, b"data") for _ in range(5)]
            closing = [asyncio.ensure_future(publisher.close()) for _ in range(2)]
            await asyncio.sleep(moments.uniform(0, 0.006))
            closing[0].cancel()
            await asyncio.wait(closing, timeout=5)
            assert all(task.done() for task in closing)
            assert all(message_id.done() for message_id in message_ids)
            await asyncio.gather(*closing, *message_ids, return_exceptions=True)
            assert asyncio.all_tasks() == {asyncio.current_task()}
        await until(settled(server))
