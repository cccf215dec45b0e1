"""Sending on an event loop: when batches leave, who waits for them, and what failures do."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior, PublishFlowControl

from hedged_pubsub._core.batching import Limits
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google.call_policy import CallPolicy
from hedged_pubsub.aio import sender
from hedged_pubsub.aio.flow_control import FlowControl
from hedged_pubsub.aio.sender import PublishFuture, Sender

from ..fakes import message, refuse
from .fakes import FakeRpc, Interruption
from .virtual_loop import VirtualLoop, virtual_loop

TOPIC = "projects/test/topics/orders"
OTHER = "projects/test/topics/bills"
POLICY = CallPolicy(None, 60.0, is_transient=lambda _: False)


class Bench:
    """A sender on a virtual loop, and the requests that it sends."""

    def __init__(self, loop: VirtualLoop, **batch_settings: Any) -> None:
        self.loop = loop
        self.flow_control = FlowControl(
            PublishFlowControl(limit_exceeded_behavior=LimitExceededBehavior.BLOCK)
        )
        rpc = FakeRpc(loop)
        self.method, self.requests = rpc.method, rpc.method.requests
        self.sender = Sender(
            hedging=HedgingSettings(),
            limits=Limits(*BatchSettings(**batch_settings)),
            flow_control=self.flow_control,
            is_traced=False,
            usual_policy=POLICY,
            rpc=rpc,
            loop=loop,
        )

    def add(
        self, *texts: str, topic: str = TOPIC, policy: CallPolicy = POLICY, permit: Any = None
    ) -> list[PublishFuture]:
        messages = [message(text.encode(), future=PublishFuture(loop=self.loop)) for text in texts]
        for one in messages:
            one.permit = permit
            self.sender.add(topic, one, policy)
        return messages

    def send(self, *texts: str, **where: Any) -> list[PublishFuture]:
        messages = self.add(*texts, **where)
        self.sender.send_all()
        self.loop.let_pass()
        return messages

    def answer(self) -> None:
        for request in self.requests:
            request.succeed()
        self.loop.let_pass()

    def wait(self, timeout: float | None = None) -> tuple[int, int]:
        return self.loop.run(self.sender.wait(timeout))

    @property
    def sent(self) -> list[list[str]]:
        """What the requests hold."""
        return [request.messages for request in self.requests]


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    """Make a sender."""
    with virtual_loop() as loop:
        yield functools.partial(Bench, loop)


Make = Callable[..., Bench]


def test_batches_leave_when_full_or_old_enough(make: Make) -> None:
    """A full batch leaves at once; one that is not when the first message has waited enough."""
    bench = make(max_messages=3, max_latency=0.05)
    bench.add("a", "b")
    bench.loop.let_pass()
    # As officially: the message that would make it ``max_messages`` opens the next one.
    assert bench.sent == []
    bench.add("c")
    bench.loop.let_pass(0.04)
    assert bench.sent == [["a", "b"]]
    bench.loop.let_pass(0.01)
    assert bench.sent == [["a", "b"], ["c"]]
    bench.answer()
    assert bench.wait() == (0, 0)
    assert bench.loop.timers == 0


@pytest.mark.parametrize("max_latency", [0.05, math.inf])
def test_topics_and_policies_have_batches_of_their_own(make: Make, max_latency: float) -> None:
    """Messages of different ones never share a request; an infinite latency sets no timer."""
    bench = make(max_latency=max_latency)
    other = CallPolicy(None, 30.0, is_transient=lambda _: False)
    futures = [*bench.add("a"), *bench.add("b", topic=OTHER), *bench.add("c", policy=other)]
    assert bench.loop.timers == (max_latency < math.inf)
    futures += bench.send("d")
    assert bench.sent == [["a", "d"], ["b"], ["c"]]
    assert bench.loop.timers == 3, "each has one, and there is none for the latency"
    bench.answer()
    assert [future.result() for future in futures] == ["a", "b", "c", "d"]


def test_mailboxes_of_one_message_leave_nothing_behind(make: Make) -> None:
    """A new retry for each message must not make anything grow; the usual policy keeps its own."""
    bench = make()
    for _ in range(5):
        bench.send("a", policy=CallPolicy(None, 30.0, is_transient=lambda _: False))
        bench.send("b")
    assert list(bench.sender._mailboxes) == [(TOPIC, POLICY)]
    assert bench.sender._watched == {}
    bench.answer()


def test_mailboxes_of_very_many_topics_are_forgotten(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first; one that has a message stays, and every message is sent."""
    monkeypatch.setattr(sender, "MAX_TOPICS", 10)
    bench, large = make(max_latency=math.inf, max_bytes=100), 100 * "x"
    bench.add("a")
    for number in range(100):
        bench.add(large, topic=f"projects/test/topics/{number}")
        assert len(bench.sender._mailboxes) <= 11
    bench.send("b")
    assert bench.sent == [*[[large]] * 100, ["a", "b"]]
    bench.answer()


def test_wait_counts_messages(make: Make) -> None:
    """It says how many there were and how many are undecided; cancelled futures count as well."""
    bench = make(max_messages=3, max_latency=0.05)
    futures = bench.add("a", "b", "c", "d")
    futures[0].cancel()
    bench.send()
    bench.requests[1].succeed()
    assert bench.wait(0.1) == (4, 2)
    waits = [bench.loop.create_task(bench.sender.wait(None)) for _ in range(2)]
    bench.loop.let_pass()
    waits[0].cancel()
    bench.loop.let_pass()
    bench.answer()
    assert waits[1].result() == (2, 0)
    assert waits[0].cancelled()
    assert bench.wait() == (0, 0)
    assert [future.result() for future in futures[1:]] == ["b", "c", "d"]


def test_flow_control_has_released_when_the_futures_resolve(make: Make) -> None:
    """Whoever is told of an outcome finds the room that the message took."""
    bench = make()
    count, seen = bench.flow_control._count, []
    for _ in range(2):
        permit = bench.loop.run(bench.flow_control.add(3))
        (future,) = bench.add("a", permit=permit)
        future.add_done_callback(lambda _: seen.append(count.messages))
    bench.send()
    assert (count.messages, count.bytes) == (2, 6)
    bench.answer()
    assert seen == [0, 0]
    assert count.bytes == 0


def test_a_predicate_that_raises_stop_iteration(make: Make) -> None:
    """R8: no future can hold a ``StopIteration``, so it becomes the cause of a ``RuntimeError``."""
    bench = make(max_messages=3)
    policy = CallPolicy(None, 60.0, is_transient=lambda _: bool(next(iter(()))))
    futures = bench.send("a", "b", policy=policy)
    bench.requests[0].fail(ValueError())
    bench.loop.let_pass()
    for future in futures:
        error = future.exception()
        assert isinstance(error, RuntimeError)
        assert isinstance(error.__cause__, StopIteration)


@pytest.mark.parametrize("asked", [None, 0, 2, "cancelled"])
def test_an_error_that_nobody_asks_for_is_reported_once_a_batch(make: Make, asked: Any) -> None:
    """And not if its first future was asked for it, or everybody left and cancelled theirs."""
    bench = make(max_messages=5)
    reported: list[str] = []
    bench.loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    futures = bench.send("a", "b", "c", "d")
    for future in futures if asked == "cancelled" else ():
        future.cancel()
    bench.requests[0].fail(ValueError())
    assert bench.wait() == (4, 0)
    if isinstance(asked, int):
        assert isinstance(futures[asked].exception(), ValueError)
    del futures
    gc.collect()
    assert len(reported) == (asked in (None, 2))
    assert all("exception was never retrieved" in line for line in reported)


@pytest.mark.parametrize("stored", [False, True])
def test_messages_that_were_never_sent_are_told_of(
    stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that ends its event loop without a flush learns how much it lost."""
    with virtual_loop() as loop:
        bench = Bench(loop, max_messages=5, max_latency=60)
        bench.add("a", "b", "c")
        if stored:
            bench.send()
            bench.answer()
    with caplog.at_level(logging.WARNING):
        del bench, loop
        gc.collect()
    assert ("3 messages were not stored" in caplog.text) is not stored


def test_an_interruption_while_batches_are_sent_loses_none(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was being sent fails; the others are sent in the next turn."""
    bench = make()
    (first,), (second,) = bench.add("a"), bench.add("b", topic=OTHER)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(bench.method, "prepare", refuse(Interruption()))
        with pytest.raises(Interruption):
            bench.sender.send_all()
    error = first.exception()
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, Interruption)
    bench.loop.let_pass()
    assert bench.sent == [["b"]]
    bench.answer()
    assert second.result() == "b"


@pytest.mark.parametrize("stored", [True, False])
def test_tracing_that_raises_decides_nothing(make: Make, stored: bool) -> None:
    """A span processor may want to end the process: the futures have their outcome all the same."""
    bench, error = make(), ValueError()
    reported: list[type] = []
    bench.loop.set_exception_handler(lambda _, context: reported.append(type(context["exception"])))
    (future,) = bench.add("a")
    (batch,) = bench.sender._undecided
    fail: Any = refuse(Interruption())
    batch.tracing = SimpleNamespace(start=lambda: None, succeed=fail, fail=fail)  # type: ignore[assignment]
    bench.send()
    if not stored:
        bench.requests[0].fail(error)
    bench.answer()
    assert future.exception() is (None if stored else error)
    assert bench.wait() == (0, 0)
    assert reported == [Interruption]


def test_abandoning_ends_what_was_never_sent(make: Make) -> None:
    """Messages that wait, open batches, sent ones and lost ones: all end, and wake who waits."""
    bench = make(max_messages=5)
    futures = [*bench.send("a"), *bench.add("b")]
    bench.sender._watched.clear()
    futures += bench.add("c", "d", topic=OTHER)
    flushing = bench.loop.create_task(bench.sender.wait(None))
    bench.loop.let_pass()
    bench.sender.abandon(RuntimeError("closed"))
    assert [str(future.exception()) for future in futures] == ["closed"] * 4
    bench.loop.run(asyncio.wait([flushing]))
    bench.send()
    assert bench.sent == [["a"]]
    assert bench.wait() == (0, 0)
