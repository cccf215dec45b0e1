"""Cancellation: what it takes back, what it must not touch, and what it leaves behind."""

from __future__ import annotations

import asyncio

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from hedged_pubsub import AsyncHedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from ..conftest import FAST, ONE_MESSAGE
from ..test_rules import stall_originals
from .publishers import publishing, settled, until

SLOW = FaultScript(latency=Fixed(0.2))
STUCK = FaultScript(faults=[Stall(30)])
MANY = BatchSettings(max_messages=100, max_latency=0.02)
ONE_AT_A_TIME = PublisherOptions(
    flow_control=PublishFlowControl(
        message_limit=1, limit_exceeded_behavior=LimitExceededBehavior.BLOCK
    )
)


async def test_a_cancelled_publish_takes_nothing_from_the_others(
    server: PubSubServer, topic: str
) -> None:
    """One of three tasks leaves; the batch goes on, and stores its message too."""
    async with publishing(server, script=SLOW, batch_settings=MANY) as publisher:
        tasks = [asyncio.ensure_future(publisher.publish(topic, b"%d" % n)) for n in range(3)]
        await until(server.attempts)
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    stored = {message.message_id: message.data for message in server.messages()}
    assert sorted(stored.values()) == [b"0", b"1", b"2"]
    assert stored[str(results[0])] == b"0"
    assert stored[str(results[2])] == b"2"


@pytest.mark.parametrize("waiting", ["in the batch", "for the answer"])
async def test_the_last_waiter_gone_does_not_cancel_the_publish(
    server: PubSubServer, topic: str, waiting: str
) -> None:
    """With nobody left to wait for it, a message is stored all the same, in one request."""
    async with publishing(server, script=SLOW, batch_settings=MANY) as publisher:
        task = asyncio.ensure_future(publisher.publish(topic, b"data"))
        await (until(server.attempts) if waiting == "for the answer" else asyncio.sleep(0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await publisher.flush(timeout=5)
        assert [attempt.outcome for attempt in server.attempts()] == ["answered"]
        assert len(server.messages()) == 1
        assert publisher.hedging_stats().attempts_cancelled == 0


async def test_a_publish_whose_task_left_may_fail(server: PubSubServer, topic: str) -> None:
    """An error that comes after the task was cancelled is no noise; see ``run``."""
    script = FaultScript(faults=[Status("PERMISSION_DENIED", after=0.1)])
    async with publishing(server, script=script) as publisher:
        task = asyncio.ensure_future(publisher.publish(topic, b"data"))
        await until(server.attempts)
        task.cancel()
        await publisher.flush(timeout=5)
    assert task.cancelled()
    assert server.attempts()[0].code == "PERMISSION_DENIED"


async def test_a_cancelled_awaitable_of_enqueue(server: PubSubServer, topic: str) -> None:
    """Cancelling the awaitable, or waiting for it with a timeout, cancels no request."""
    async with publishing(server, script=SLOW, batch_settings=MANY) as publisher:
        kept, cancelled, shielded = [await publisher.enqueue(topic, b"data") for _ in range(3)]
        cancelled.cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(shielded), 0.05)
        assert await kept
        assert await shielded
        assert cancelled.cancelled()
    assert len(server.messages()) == 3
    assert len(server.attempts()) == 1


async def test_cancelled_while_waiting_for_flow_control(server: PubSubServer, topic: str) -> None:
    """A message that still waits for credit is taken back, and those behind it go on in order."""
    options = ONE_AT_A_TIME
    async with publishing(server, script=SLOW, publisher_options=options) as publisher:
        tasks = [asyncio.ensure_future(publisher.publish(topic, b"%d" % n)) for n in range(5)]
        await until(server.attempts)
        tasks[1].cancel()
        tasks[3].cancel()
        await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2], tasks[4]), 5)
        assert tasks[1].cancelled()
        assert tasks[3].cancelled()
        await asyncio.wait_for(publisher.publish(topic, b"5"), 5)
    assert [message.data for message in server.messages()] == [b"0", b"2", b"4", b"5"]


async def test_losers_are_cancelled_at_the_server(server: PubSubServer, topic: str) -> None:
    """A ``grpc.aio`` call that is merely dropped would go on; the server sees ours cancelled."""
    async with publishing(server, tokens=1, script=stall_originals()) as publisher:
        await publisher.publish(topic, b"data")
        await until(settled(server))
    assert [attempt.outcome for attempt in server.attempts()] == ["cancelled", "answered"]
    assert publisher.hedging_stats().attempts_cancelled == 1


async def test_close_with_a_timeout_ends_what_is_left(server: PubSubServer, topic: str) -> None:
    """It says how many messages, they fail with the reason, and their requests are cancelled."""
    async with publishing(server, script=STUCK, batch_settings=MANY) as publisher:
        stuck = [await publisher.enqueue(topic, b"data") for _ in range(3)]
        with pytest.raises(asyncio.TimeoutError, match="3 of 3 messages are not decided"):
            await publisher.close(timeout=0.1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for message_id in stuck:
            with pytest.raises(RuntimeError, match="closed before the message was stored"):
                await message_id
        await until(settled(server))
        assert [attempt.outcome for attempt in server.attempts()] == ["cancelled"]
        await publisher.close()


async def test_flush_with_a_timeout_ends_nothing(server: PubSubServer, topic: str) -> None:
    """A flush that runs out of time names the number of messages, which stay under way."""
    async with publishing(server, script=SLOW) as publisher:
        message_ids = [await publisher.enqueue(topic, b"data") for _ in range(3)]
        with pytest.raises(asyncio.TimeoutError, match="3 of 3 messages are not decided"):
            await publisher.flush(timeout=0.05)
        await publisher.flush(timeout=5)
        assert all(message_id.done() for message_id in message_ids)


async def test_a_cancelled_flush_cancels_nothing_else(server: PubSubServer, topic: str) -> None:
    """Neither the messages nor another flush notice."""
    async with publishing(server, script=SLOW) as publisher:
        message_id = await publisher.enqueue(topic, b"data")
        flushes = [asyncio.ensure_future(publisher.flush()) for _ in range(2)]
        await asyncio.sleep(0.05)
        flushes[0].cancel()
        await flushes[1]
        assert message_id.done()
        assert await message_id
        assert flushes[0].cancelled()


async def test_a_cancelled_close_closes_all_the_same(server: PubSubServer, topic: str) -> None:
    """Whoever gives up on closing leaves no request, no pending awaitable and no open channel."""
    async with publishing(server, script=STUCK) as publisher:
        message_id = await publisher.enqueue(topic, b"data")
        await until(server.attempts)
        closing = asyncio.ensure_future(publisher.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(RuntimeError, match="closed before the message was stored"):
            await message_id
        await until(settled(server))
    assert [attempt.outcome for attempt in server.attempts()] == ["cancelled"]


async def test_an_exception_in_the_block(server: PubSubServer, topic: str) -> None:
    """What was accepted before the block raised is stored, and the exception gets through."""
    message_ids = []

    async def fail() -> None:
        async with AsyncHedgedPublisher(
            BatchSettings(max_latency=60), hedging_settings=FAST
        ) as publisher:
            message_ids.append(await publisher.enqueue(topic, b"data"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert [message.message_id for message in server.messages()] == [message_ids[0].result()]


async def test_a_task_cancelled_in_the_block(server: PubSubServer, topic: str) -> None:
    """The block still flushes; a second cancellation ends that, and nothing stays pending."""
    server.set_script(SLOW)
    message_ids = []

    async def publish_for_ever() -> None:
        async with AsyncHedgedPublisher(ONE_MESSAGE, hedging_settings=FAST) as publisher:
            message_ids.append(await publisher.enqueue(topic, b"data"))
            await asyncio.sleep(60)

    task = asyncio.ensure_future(publish_for_ever())
    await until(server.attempts)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await message_ids[0]

    server.clear()
    server.set_script(STUCK)
    task = asyncio.ensure_future(publish_for_ever())
    await until(server.attempts)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task], timeout=2)
    assert task.cancelled()
    with pytest.raises(RuntimeError, match="closed before"):
        await message_ids[1]
    await until(settled(server))
    server.set_script(FaultScript())


async def test_closing_while_others_wait_for_flow_control(server: PubSubServer, topic: str) -> None:
    """Who waits for credit when the publisher is closed gets an error; the accepted is stored."""
    async with publishing(server, script=SLOW, publisher_options=ONE_AT_A_TIME) as publisher:
        first, *late = [asyncio.ensure_future(publisher.publish(topic, b"data")) for _ in range(4)]
        await until(server.attempts)
        await publisher.close()
        assert await first
        for error in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(error, RuntimeError)
            assert "closed publisher" in str(error)
    assert len(server.messages()) == 1


async def test_all_tasks_of_the_loop_are_cancelled(server: PubSubServer, topic: str) -> None:
    """What ``asyncio.run`` does in the end: no awaitable stays pending, and it is an error."""
    async with publishing(server, script=STUCK) as publisher:
        message_id = await publisher.enqueue(topic, b"data")
        await until(server.attempts)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(exceptions.Cancelled):
            await asyncio.wait_for(message_id, 1)
        server.set_script(FaultScript())
        assert await publisher.publish(topic, b"data")
        await until(settled(server))
