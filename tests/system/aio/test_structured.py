"""``asyncio.timeout`` and ``TaskGroup``, which Python has from 3.11 on."""

from __future__ import annotations

import asyncio
import sys

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import AsyncHedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Status

from ..conftest import FAST, ONE_MESSAGE
from ..test_rules import stall_originals
from .publishers import publishing, settled, until

if sys.version_info < (3, 11):
    pytest.skip("no asyncio.timeout and no TaskGroup before 3.11", allow_module_level=True)

SLOW = FaultScript(latency=Fixed(0.2))


async def test_timeout(server: PubSubServer, topic: str) -> None:
    """``asyncio.timeout`` ends the wait only; the publish is hedged and stored."""
    async with publishing(server, tokens=1, script=stall_originals()) as publisher:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await publisher.publish(topic, b"data")
        async with asyncio.timeout(5):
            await publisher.flush()
        await until(settled(server))
    assert len(server.messages()) == 1
    assert publisher.hedging_stats().hedges_won == 1


async def test_timeout_around_the_block(server: PubSubServer, topic: str) -> None:
    """The block flushes before the timeout gets through."""
    server.set_script(SLOW)
    message_ids = []

    async def publish_for_ever() -> None:
        async with asyncio.timeout(0.1):
            async with AsyncHedgedPublisher(ONE_MESSAGE, hedging_settings=FAST) as publisher:
                message_ids.append(await publisher.enqueue(topic, b"data"))
                await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await publish_for_ever()
    assert await message_ids[0]


async def test_a_task_group(server: PubSubServer, topic: str) -> None:
    """The results of a group's tasks are the ids, and they share requests."""
    async with publishing(server, batch_settings=BatchSettings(max_latency=0.02)) as publisher:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(publisher.publish(topic, b"data")) for _ in range(50)]
        assert len({task.result() for task in tasks}) == 50


async def test_a_task_group_that_fails(server: PubSubServer, topic: str) -> None:
    """One task fails, the others are cancelled; what they published is stored."""
    script = FaultScript(latency=Fixed(0.2), faults=[Status("NOT_FOUND", topic="missing")])
    missing = server.topic_path("missing")
    async with publishing(server, script=script) as publisher:

        async def publish_all() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(5):
                    group.create_task(publisher.publish(topic, b"%d" % number))
                group.create_task(publisher.publish(missing, b"data"))

        with pytest.raises(ExceptionGroup) as raised:  # noqa: F821 - of 3.11
            await publish_all()
        assert [type(error) for error in raised.value.exceptions] == [exceptions.NotFound]
        await publisher.flush(timeout=5)
    assert len(server.messages(topic)) == 5
