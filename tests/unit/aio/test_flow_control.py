"""Flow control on an event loop: first come, first served, and no credit is ever lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.types import LimitExceededBehavior, PublishFlowControl
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.aio.flow_control import FlowControl

from .fakes import turns
from .virtual_loop import VirtualLoop, virtual_run

BLOCK, ERROR, IGNORE = (
    LimitExceededBehavior.BLOCK,
    LimitExceededBehavior.ERROR,
    LimitExceededBehavior.IGNORE,
)


def limited(
    *, messages: int = 100, size: int = 100, behavior: LimitExceededBehavior = BLOCK
) -> FlowControl:
    """Make flow control with these limits."""
    return FlowControl(
        PublishFlowControl(
            message_limit=messages, byte_limit=size, limit_exceeded_behavior=behavior
        )
    )


def test_it_counts_unless_it_is_to_ignore() -> None:
    """By default limits are ignored, and then nobody asks for credit."""
    assert not FlowControl(PublishFlowControl()).counts
    assert not limited(behavior=IGNORE).counts
    assert limited(behavior=BLOCK).counts
    assert limited(behavior=ERROR).counts


@pytest.mark.parametrize(
    ("messages", "size", "told"),
    [(2, 100, "messages: 3 / 2, bytes: 30 / 100"), (9, 25, "messages: 3 / 9, bytes: 30 / 25")],
)
def test_error_says_what_would_be_exceeded(messages: int, size: int, told: str) -> None:
    """Above either limit a message is refused at once, with both loads; then there is room."""

    async def main(loop: VirtualLoop) -> None:
        flow = limited(messages=messages, size=size, behavior=ERROR)
        await flow.borrow(10)
        await flow.borrow(10)
        with pytest.raises(FlowControlLimitError, match=told):
            await flow.borrow(10)
        flow.give_back(10)
        await flow.borrow(10)

    virtual_run(main)


@pytest.mark.parametrize(("messages", "size"), [(100, 9), (0, 100)])
def test_what_would_wait_for_ever_is_refused(messages: int, size: int) -> None:
    """A message that alone exceeds a limit is an error even where others wait."""

    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(FlowControlLimitError, match="would block forever"):
            await limited(messages=messages, size=size).borrow(10)

    virtual_run(main)


def test_a_small_message_does_not_overtake_a_large_one() -> None:
    """Whoever waits longest is first, even if a later one would fit."""

    async def main(loop: VirtualLoop) -> None:
        flow = limited()
        await flow.borrow(60)
        order: list[int] = []

        async def borrow(size: int) -> None:
            await flow.borrow(size)
            order.append(size)

        waiting = [asyncio.ensure_future(borrow(size)) for size in (80, 10, 20)]
        await turns()
        assert order == []
        flow.give_back(60)
        await turns()
        assert order == [80, 10]
        flow.give_back(80)
        await asyncio.gather(*waiting)
        assert order == [80, 10, 20]

    virtual_run(main)


def test_those_behind_a_cancelled_one_go_on() -> None:
    """A waiting message that is cancelled makes way for the ones behind it that fit."""

    async def main(loop: VirtualLoop) -> None:
        flow = limited()
        await flow.borrow(60)
        large = asyncio.ensure_future(flow.borrow(80))
        small = asyncio.ensure_future(flow.borrow(10))
        await turns()
        large.cancel()
        await small
        assert large.cancelled()
        flow.give_back(10)
        flow.give_back(60)
        await flow.borrow(100)

    virtual_run(main)


def test_cancelled_in_the_moment_it_was_granted() -> None:
    """Credit that was granted to a task on its way out comes back."""

    async def main(loop: VirtualLoop) -> None:
        flow = limited(messages=1)
        await flow.borrow(1)
        first = asyncio.ensure_future(flow.borrow(1))
        second = asyncio.ensure_future(flow.borrow(1))
        await turns()
        flow.give_back(1)  # to the first
        first.cancel()
        await second
        assert first.cancelled()

    virtual_run(main)


def test_given_back_in_the_moment_the_first_is_cancelled() -> None:
    """Credit that comes back to a task on its way out goes to the next one."""

    async def main(loop: VirtualLoop) -> None:
        flow = limited(messages=1)
        await flow.borrow(1)
        first = asyncio.ensure_future(flow.borrow(1))
        second = asyncio.ensure_future(flow.borrow(1))
        await turns()
        first.cancel()
        flow.give_back(1)
        await second
        assert first.cancelled()

    virtual_run(main)


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of the random run: its size, and when it comes, goes, and is cancelled."""

    size: int
    after: int
    held: int
    cancelled_after: int | None


@given(
    messages=st.lists(
        st.builds(
            Message,
            size=st.integers(1, 60),
            after=st.integers(0, 8),
            held=st.integers(0, 5),
            cancelled_after=st.none() | st.integers(0, 8),
        ),
        max_size=30,
    )
)
def test_whatever_happens_no_credit_is_lost(messages: list[Message]) -> None:
    """Limits hold at all times, and in the end all credit is back."""

    async def main(loop: VirtualLoop) -> None:
        flow = limited(messages=4)
        lent: list[int] = []

        async def pass_through(message: Message) -> None:
            await asyncio.sleep(message.after)
            await flow.borrow(message.size)
            lent.append(message.size)
            try:
                assert len(lent) <= 4
                assert sum(lent) <= 100
                await asyncio.sleep(message.held)
            finally:
                lent.remove(message.size)
                flow.give_back(message.size)

        running = []
        for message in messages:
            task = asyncio.ensure_future(pass_through(message))
            running.append(task)
            if message.cancelled_after is not None:
                loop.call_later(message.cancelled_after, task.cancel)
        results = await asyncio.gather(*running, return_exceptions=True)
        assert not [r for r in results if isinstance(r, Exception)]
        for _ in range(4):
            await asyncio.wait_for(flow.borrow(25), 1)

    virtual_run(main)
