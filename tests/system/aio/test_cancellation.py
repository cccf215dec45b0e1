"""Cancellation and closing: what they end, what they must not touch, and what they leave behind.

Every place at which a cancellation can come is in ``tests/unit/aio/test_publisher.py``.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from google.auth.exceptions import RefreshError
from google.cloud.pubsub_v1.types import BatchSettings
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from ..conftest import FAST, TOPIC
from ..test_flow_control import BLOCK, limited
from .publishers import publishing, settled, until

MANY = BatchSettings(max_messages=100, max_latency=0.02)

on_and_off = pytest.mark.parametrize("settings", [FAST, None], ids=["", "hedging off"])


async def test_whoever_leaves_takes_nothing_from_the_others(server: PubSubServer) -> None:
    """A task, an awaitable and a flush are cancelled, a wait times out: all is stored, at once."""
    slow = FaultScript(latency=Fixed(0.2))
    async with publishing(server, script=slow, batch_settings=MANY) as publisher:
        tasks = [asyncio.ensure_future(publisher.publish(TOPIC, b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0)
        cancelled, shielded = [await publisher.enqueue(TOPIC, b"%d" % n) for n in (3, 4)]
        flushes = [asyncio.ensure_future(publisher.flush()) for _ in range(2)]
        await until(server.attempts)
        for left in (tasks[1], cancelled, flushes[0]):
            left.cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(shielded), 0.02)
        await flushes[1]
        assert shielded.done()
        results = await asyncio.gather(*tasks, shielded, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        assert cancelled.cancelled()
        assert flushes[0].cancelled()
    assert len(server.attempts()) == 1
    stored = {message.data: message.message_id for message in server.messages()}
    assert sorted(stored) == [b"0", b"1", b"2", b"3", b"4"]
    assert [results[0], *results[2:]] == [stored[b"0"], stored[b"2"], stored[b"4"]]


@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
@pytest.mark.parametrize("waiting", ["in the batch", "for the answer"])
async def test_the_last_waiter_gone_does_not_cancel_the_publish(
    server: PubSubServer, waiting: str, fails: bool
) -> None:
    """With nobody left to wait for it, a message is sent all the same; an error is no noise."""
    faults = [Status("PERMISSION_DENIED", after=0.2)] if fails else []
    script = FaultScript(latency=Fixed(0.2), faults=faults)
    async with publishing(server, script=script, batch_settings=MANY) as publisher:
        task = asyncio.ensure_future(publisher.publish(TOPIC, b"data"))
        await (until(server.attempts) if waiting == "for the answer" else asyncio.sleep(0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await publisher.flush(timeout=5)
        assert publisher.hedging_stats().attempts_cancelled == 0
    (attempt,) = server.attempts()
    assert attempt.outcome == ("failed" if fails else "answered")


@on_and_off
@pytest.mark.parametrize("end", ["timeout", "cancellation"])
async def test_a_close_that_is_not_waited_for_leaves_nothing_pending(
    server: PubSubServer, settings: HedgingSettings | None, end: str
) -> None:
    """Messages under way, in an open batch, and waiting for flow control: all get an error (R8).

    Requests are cancelled on the server.
    """
    async with publishing(
        server,
        script=FaultScript(faults=[Stall(30)]),
        hedging_settings=settings,
        batch_settings=BatchSettings(max_messages=4, max_latency=60),
        publisher_options=limited(BLOCK, messages=5),
    ) as publisher:
        message_ids = [await publisher.enqueue(TOPIC, b"data") for _ in range(5)]
        waiting = [asyncio.ensure_future(publisher.publish(TOPIC, b"data")) for _ in range(3)]
        await until(server.attempts)
        closing = asyncio.ensure_future(publisher.close(0.1 if end == "timeout" else None))
        if end == "timeout":
            with pytest.raises(asyncio.TimeoutError, match="5 of 5 messages"):
                await closing
        else:
            await until(lambda: len(server.attempts()) == 2)  # the open batch was sent
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
        for message_id in message_ids:
            with pytest.raises(RuntimeError, match="closed before the message was stored"):
                message_id.result()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
        assert all("closed publisher" in str(result) for result in results)
        await until(settled(server))
    assert {attempt.outcome for attempt in server.attempts()} == {"cancelled"}


@on_and_off
# Older releases of gRPC stumble over the call when they let go of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_is_no_answer_ends_the_publish(
    server: PubSubServer, settings: HedgingSettings | None
) -> None:
    """An error that no service sends gets to the awaitable, and leaving the block ends (R8)."""

    class Refuse(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, *_: Any) -> Any:
            raise RefreshError("the token cannot be refreshed")

    channel = grpc.aio.insecure_channel(server.address, interceptors=[Refuse()])
    transport = PublisherGrpcAsyncIOTransport(channel=channel)

    async def main() -> None:
        async with publishing(server, hedging_settings=settings, transport=transport) as publisher:
            for message_id in [await publisher.enqueue(TOPIC, b"data") for _ in range(3)]:
                with pytest.raises(RefreshError):
                    await message_id

    await asyncio.wait_for(main(), 5)
