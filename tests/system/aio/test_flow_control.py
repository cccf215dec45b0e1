"""Flow control in its three behaviours: the credit of a message comes back on every path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError, MessageTooLargeError
from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status, TooFewIds

from ..test_flow_control import BLOCK, ERROR, IGNORE, limited
from .publishers import publishing


async def test_error(server: PubSubServer, topic: str) -> None:
    """A message above the limit fails at once; the others are stored, and then there is room."""
    script = FaultScript(latency=Fixed(0.2))
    options = limited(ERROR, messages=2)
    async with publishing(server, script=script, publisher_options=options) as publisher:
        accepted = [await publisher.enqueue(topic, b"data") for _ in range(2)]
        with pytest.raises(FlowControlLimitError, match="messages: 3 / 2"):
            await publisher.enqueue(topic, b"data")
        await accepted[0]
        await accepted[1]
        await publisher.publish(topic, b"data")
    assert len(server.messages()) == 3


@pytest.mark.parametrize("behavior", [IGNORE, BLOCK])
async def test_ignore_and_block(
    server: PubSubServer, topic: str, behavior: LimitExceededBehavior
) -> None:
    """With room for one, five messages go one after the other, or all at once."""
    script = FaultScript(latency=Fixed(0.05))
    options = limited(behavior)
    async with publishing(
        server, script=script, publisher_options=options, hedging_settings=None
    ) as publisher:
        ids = await asyncio.gather(*(publisher.publish(topic, b"%d" % n) for n in range(5)))
        assert len(set(ids)) == 5
    arrivals = [attempt.arrival for attempt in server.attempts()]
    ends = [attempt.ended or 0.0 for attempt in server.attempts()]
    one_by_one = all(arrival >= end for arrival, end in zip(arrivals[1:], ends[:-1], strict=True))
    assert one_by_one is (behavior is BLOCK)


async def test_many_tasks_block(server: PubSubServer, topic: str) -> None:
    """With room for three, two hundred tasks all get through, in full batches."""
    script = FaultScript(latency=Fixed(0.005))
    async with publishing(
        server,
        script=script,
        publisher_options=limited(BLOCK, messages=3),
        batch_settings=BatchSettings(max_messages=3, max_latency=0.01),
    ) as publisher:
        ids = await asyncio.gather(*(publisher.publish(topic, b"%d" % n) for n in range(200)))
    assert len(set(ids)) == 200
    assert len({message.data for message in server.messages()}) == len(server.messages()) == 200


@pytest.mark.parametrize("tracing", [False, True], ids=["", "tracing"])
@pytest.mark.parametrize(
    "path", ["stored", "hedged", "failed", "too few ids", "oversize", "closed channel", "cancelled"]
)
async def test_credit_comes_back(
    server: PubSubServer, topic: str, path: str, tracing: bool
) -> None:
    """However a message ends, there is room for the next one as soon as that is known."""
    faults: dict[str, Any] = {
        "hedged": [Stall(30, calls=[1])],
        "failed": [Status("PERMISSION_DENIED", calls=[1])],
        "too few ids": [TooFewIds(calls=[1])],
    }
    async with publishing(
        server,
        tokens=1,
        script=FaultScript(faults=faults.get(path, [])),
        publisher_options=limited(ERROR, tracing=tracing),
    ) as publisher:
        if path == "closed channel":
            await publisher.transport.close()
        if path == "oversize":
            with pytest.raises(MessageTooLargeError):
                await publisher.publish(topic, b"x" * 10_000_001)
        else:
            message_id = await publisher.enqueue(topic, b"data")
            if path == "cancelled":
                message_id.cancel()
                await publisher.flush()
            await asyncio.wait([message_id])
            if not message_id.cancelled():
                message_id.exception()
        again = await publisher.enqueue(topic, b"data")  # which raises where there is no room
        await asyncio.wait([again])
        assert (again.exception() is None) is (path != "closed channel")


async def test_a_failed_publish_leaves_room_for_a_blocked_one(
    server: PubSubServer, topic: str
) -> None:
    """Whoever waits behind a message that fails goes on."""
    script = FaultScript(faults=[Status("PERMISSION_DENIED", calls=[1], after=0.05)])
    async with publishing(server, script=script, publisher_options=limited(BLOCK)) as publisher:
        results = await asyncio.wait_for(
            asyncio.gather(
                publisher.publish(topic, b"0"),
                publisher.publish(topic, b"1"),
                return_exceptions=True,
            ),
            5,
        )
    assert isinstance(results[0], exceptions.PermissionDenied)
    assert isinstance(results[1], str)
