"""Flow control on an event loop: who waits, who goes on, and that nothing stays counted."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.types import PublishFlowControl

from hedged_pubsub.aio.flow_control import FlowControl

from ..test_flow_control import ERROR, limited
from .virtual_loop import VirtualLoop, turns, virtual_run


def make(**limits: Any) -> FlowControl:
    """Make flow control with these limits."""
    return FlowControl(limited(**limits))


async def test_a_message_that_is_refused_is_not_counted() -> None:
    """Nor is one that could only wait for ever; by default nobody asks."""
    flow = make(messages=1, behavior=ERROR)
    await flow.add(10)
    for refusing, refusal in ((flow, "would be exceeded"), (make(size=9), "block forever")):
        with pytest.raises(FlowControlLimitError, match=refusal):
            await refusing.add(10)
    assert flow._count.messages == 1
    assert not FlowControl(PublishFlowControl()).counts


async def test_those_behind_a_cancelled_one_go_on() -> None:
    """When a waiting message is cancelled, those behind it that fit are admitted."""
    flow = make()
    first = await flow.add(60)
    large, small = (asyncio.ensure_future(flow.add(size)) for size in (80, 10))
    await turns()
    assert not small.done(), "whoever waits longest is first"
    large.cancel()
    flow.release(await small)
    assert large.cancelled()
    flow.release(first)
    await flow.add(100)


@pytest.mark.parametrize("order", ["admitted, then cancelled", "cancelled, then admitted"])
async def test_cancelled_in_the_moment_it_is_admitted(order: str) -> None:
    """What a task on its way out was admitted for goes to the next one."""
    flow = make(messages=1)
    held = await flow.add(1)
    first, second = (asyncio.ensure_future(flow.add(1)) for _ in range(2))
    await turns()
    steps: list[Callable[[], object]] = [lambda: flow.release(held), first.cancel]
    for step in steps if order == "admitted, then cancelled" else steps[::-1]:
        step()
    await second
    assert first.cancelled()


@pytest.mark.parametrize("is_closed", [True, False], ids=["loop closed", "loop open"])
def test_a_waiting_coroutine_is_thrown_away(is_closed: bool) -> None:
    """It leaves the queue, and wakes nobody on a loop that is closed."""

    async def main(loop: VirtualLoop) -> tuple[Coroutine[Any, Any, Any], Coroutine[Any, Any, Any]]:
        flow = make()
        await flow.add(60)
        first, second = flow.add(80), flow.add(10)
        for waiting in (first, second):
            waiting.send(None)
        if not is_closed:
            first.close()
            with pytest.raises(StopIteration):
                second.send(None)
        return first, second

    first, second = virtual_run(main)
    first.close()
    second.close()
    gc.collect()
