"""Cancellation: what it takes back, what it must not touch, and what it leaves behind."""

from __future__ import annotations

import asyncio
import sys

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import AsyncHedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from ..conftest import FAST, ONE_MESSAGE, TOPIC
from .publishers import publishing, settled, until

SLOW = FaultScript(latency=Fixed(0.2))
STUCK = FaultScript(faults=[Stall(30)])
MANY = BatchSettings(max_messages=100, max_latency=0.02)


async def test_whoever_leaves_takes_nothing_from_the_others(server: PubSubServer) -> None:
    """A task, an awaitable and a flush are cancelled, a wait times out: all is stored, at once."""
    async with publishing(server, script=SLOW, batch_settings=MANY) as publisher:
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


async def test_a_cancelled_close_closes_all_the_same(server: PubSubServer) -> None:
    """Whoever gives up on closing leaves no request, no pending awaitable and no open channel."""
    async with publishing(server, script=STUCK) as publisher:
        message_id = await publisher.enqueue(TOPIC, b"data")
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


async def test_a_task_cancelled_in_the_block(server: PubSubServer) -> None:
    """The block still flushes; a second cancellation ends that, and nothing stays pending."""
    server.set_script(SLOW)
    message_ids = []

    async def publish_for_ever() -> None:
        async with AsyncHedgedPublisher(ONE_MESSAGE, hedging_settings=FAST) as publisher:
            message_ids.append(await publisher.enqueue(TOPIC, b"data"))
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


async def test_all_tasks_of_the_loop_are_cancelled(server: PubSubServer) -> None:
    """What ``asyncio.run`` does in the end: no awaitable stays pending, and it is an error."""
    async with publishing(server, script=STUCK) as publisher:
        message_id = await publisher.enqueue(TOPIC, b"data")
        await until(server.attempts)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(exceptions.Cancelled):
            await asyncio.wait_for(message_id, 1)
        server.set_script(FaultScript())
        assert await publisher.publish(TOPIC, b"data")
        await until(settled(server))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no TaskGroup before 3.11")
async def test_a_task_group_that_fails(server: PubSubServer) -> None:
    """One task fails, the others are cancelled; what they published is stored."""
    script = FaultScript(latency=Fixed(0.2), faults=[Status("NOT_FOUND", topic="missing")])
    missing = server.topic_path("missing")
    async with publishing(server, script=script) as publisher:

        async def publish_all() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(5):
                    group.create_task(publisher.publish(TOPIC, b"%d" % number))
                group.create_task(publisher.publish(missing, b"data"))

        with pytest.raises(ExceptionGroup) as raised:  # noqa: F821 - of 3.11
            await publish_all()
        assert [type(error) for error in raised.value.exceptions] == [exceptions.NotFound]
        await publisher.flush(timeout=5)
    assert len(server.messages(TOPIC)) == 5
