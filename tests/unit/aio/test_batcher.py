"""Batching on an event loop: when batches leave, who waits for them, and what failures do."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from typing import Any

import pytest
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior, PublishFlowControl
from google.pubsub_v1 import types

from hedged_pubsub._batch import BatchLimits
from hedged_pubsub.aio.batcher import Batcher
from hedged_pubsub.aio.driver import Driver
from hedged_pubsub.aio.flow_control import FlowControl
from hedged_pubsub.call_policy import CallPolicy
from hedged_pubsub.settings import HedgingSettings

from .fakes import FakeMethod, FakeRpc, turns
from .virtual_loop import VirtualLoop, virtual_run

TOPIC = "projects/test/topics/orders"
POLICY = CallPolicy(None, 60.0, is_transient=lambda _: False)


class Bench:
    """A batcher on a virtual loop, and the requests that it sends."""

    def __init__(self, loop: VirtualLoop, **batch_settings: Any) -> None:
        self.method = FakeMethod()
        self.flow_control = FlowControl(
            PublishFlowControl(limit_exceeded_behavior=LimitExceededBehavior.BLOCK)
        )
        self.driver = Driver(HedgingSettings(), loop)
        self.batcher = Batcher(
            limits=BatchLimits(BatchSettings(**batch_settings)),
            flow_control=self.flow_control,
            rpc=FakeRpc(self.method),
            driver=self.driver,
            loop=loop,
        )

    def add(
        self, *texts: str, topic: str = TOPIC, policy: CallPolicy = POLICY
    ) -> list[asyncio.Future[str]]:
        """Add messages."""
        bodies = [types.PubsubMessage.serialize({"data": text.encode()}) for text in texts]
        return [self.batcher.add(topic, body, policy, 0.0) for body in bodies]

    @property
    def sent(self) -> list[list[str]]:
        """What the requests hold."""
        return [request.messages for request in self.method.requests]


def test_batches_leave_when_full_or_old_enough() -> None:
    """A full batch leaves at once; one that is not when the first message has waited enough."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_messages=3, max_latency=0.05)
        bench.add("a", "b")
        await turns()
        # As officially: the message that would make it ``max_messages`` opens the next one.
        assert bench.sent == []
        bench.add("c")
        await turns()
        assert bench.sent == [["a", "b"]]
        await asyncio.sleep(0.04)
        assert bench.sent == [["a", "b"]]
        await asyncio.sleep(0.01)
        await turns()
        assert bench.sent == [["a", "b"], ["c"]]
        for request in bench.method.requests:
            request.answer()
        assert await bench.batcher.wait(None) == (3, 0)
        await turns()
        assert loop.timers == 0

    virtual_run(main)


def test_topics_and_policies_have_batches_of_their_own() -> None:
    """Messages of different topics or policies never share a request."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_latency=0.05)
        other = CallPolicy(None, 30.0, is_transient=lambda _: False)
        futures = [
            *bench.add("a"),
            *bench.add("b", topic=TOPIC + "-b"),
            *bench.add("c", policy=other),
            *bench.add("d"),
        ]
        bench.batcher.commit_all()
        await turns()
        assert bench.sent == [["a", "d"], ["b"], ["c"]]
        assert loop.timers == 3  # a look for each, and none for the latency
        for request in bench.method.requests:
            request.answer()
        assert await asyncio.gather(*futures) == ["a", "b", "c", "d"]

    virtual_run(main)


def test_an_infinite_latency_is_no_timer() -> None:
    """``max_latency=inf`` waits for a full batch or for ``flush``."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_latency=math.inf)
        (future,) = bench.add("a")
        assert loop.timers == 0
        bench.batcher.commit_all()
        await turns()
        bench.method.requests[0].answer()
        assert await future == "a"

    virtual_run(main)


def test_wait_counts_messages() -> None:
    """It says how many there were and how many are undecided; cancelled futures count as well."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_messages=3, max_latency=0.05)
        futures = bench.add("a", "b", "c", "d")
        futures[0].cancel()
        bench.batcher.commit_all()
        await turns()
        bench.method.requests[1].answer()
        assert await bench.batcher.wait(0.1) == (4, 2)
        waits = [asyncio.ensure_future(bench.batcher.wait(None)) for _ in range(2)]
        await turns()
        waits[0].cancel()
        await turns()
        bench.method.requests[0].answer()
        assert await waits[1] == (2, 0)
        assert waits[0].cancelled()
        assert await bench.batcher.wait(None) == (0, 0)
        assert [future.result() for future in futures[1:]] == ["b", "c", "d"]

    virtual_run(main)


def test_credit_comes_back_before_the_futures_resolve() -> None:
    """Whoever is told of an outcome finds the room that the message took."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_messages=1)
        await bench.flow_control.borrow(3)
        (future,) = bench.add("a")
        future.add_done_callback(lambda _: seen.append(bench.flow_control._messages))
        seen: list[int] = []
        await turns()
        assert bench.flow_control._messages == 1
        bench.method.requests[0].answer()
        await future
        assert seen == [0]
        assert bench.flow_control._bytes == 0

    virtual_run(main)


def test_a_message_that_is_too_large_leaves_the_open_batch_alone() -> None:
    """It is refused before anything is sent or opened."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        (future,) = bench.add("a")
        with pytest.raises(MessageTooLargeError):
            bench.add("x" * 10_000_000)
        bench.batcher.commit_all()
        await turns()
        assert bench.sent == [["a"]]
        bench.method.requests[0].answer()
        await future

    virtual_run(main)


def test_an_error_before_sending_fails_the_batch() -> None:
    """R8: whatever goes wrong at the commit, the futures get it and nothing stays undecided."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_messages=1)

        def refuse(serialized: bytes) -> object:
            raise ZeroDivisionError

        bench.method.prepare = refuse
        (future,) = bench.add("a")
        with pytest.raises(ZeroDivisionError):
            await future
        assert await bench.batcher.wait(None) == (0, 0)

    virtual_run(main)


def test_a_predicate_that_raises_stop_iteration() -> None:
    """R8: no future can hold a ``StopIteration``, so it becomes the cause of a ``RuntimeError``."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_messages=3)

        def predicate(error: Exception) -> bool:
            return bool(next(iter(())))

        policy = CallPolicy(None, 60.0, is_transient=predicate)
        futures = bench.add("a", "b", policy=policy)
        bench.batcher.commit_all()
        await turns()
        bench.method.requests[0].response.set_exception(ValueError())
        for future in futures:
            with pytest.raises(RuntimeError, match="StopIteration") as raised:
                await future
            assert isinstance(raised.value.__cause__, StopIteration)

    virtual_run(main)


@pytest.mark.parametrize("awaited", [None, 0, 2])
def test_an_error_that_nobody_asks_for_is_reported_once_a_batch(awaited: int | None) -> None:
    """For a batch that is lost there is one report, and none if its first future was asked."""
    reported: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
        bench = Bench(loop, max_messages=5)
        futures = bench.add("a", "b", "c", "d")
        bench.batcher.commit_all()
        await turns()
        bench.method.requests[0].response.set_exception(ValueError())
        await turns()
        if awaited is not None:
            with pytest.raises(ValueError):  # noqa: PT011 - it has no text
                await futures[awaited]
        del futures
        gc.collect()

    virtual_run(main)
    assert reported == ([] if awaited == 0 else ["Future exception was never retrieved"])


def test_futures_whose_tasks_were_cancelled_report_nothing() -> None:
    """A batch that fails after everybody left is no noise, and harms nobody."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_messages=3)
        for future in bench.add("a", "b"):
            future.cancel()
        bench.batcher.commit_all()
        await turns()
        bench.method.requests[0].response.set_exception(ValueError())
        assert await bench.batcher.wait(None) == (2, 0)
        gc.collect()

    virtual_run(main)


@pytest.mark.parametrize("stored", [False, True])
def test_messages_that_were_never_sent_are_told_of(
    stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that ends its event loop without a flush learns how much it lost."""

    async def main(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_messages=5, max_latency=60)
        futures = bench.add("a", "b", "c")
        if stored:
            bench.batcher.commit_all()
            await turns()
            bench.method.requests[0].answer()
            await asyncio.gather(*futures)

    with caplog.at_level(logging.WARNING):
        virtual_run(main)
        gc.collect()
    assert ("3 messages were not stored" in caplog.text) is not stored
