"""From a mailbox to the driver: when batches leave, and what a stop, an error and a fork do."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
from google.api_core.retry import Retry
from google.cloud.pubsub_v1.types import BatchSettings, PublishFlowControl

from hedged_pubsub._core.batching import Limits
from hedged_pubsub._core.events import Fail
from hedged_pubsub._core.flow_control import Permit
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.call_policy import CallPolicy
from hedged_pubsub._google.direct_call import DirectCall
from hedged_pubsub._sync import sender
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.future import PublishFuture
from hedged_pubsub._sync.sender import Sender
from tests.system.interruptions.places import interrupt_collection

from .fakes import Threads, message
from .test_flow_control import ERROR, limited

TOPIC = "projects/test/topics/orders"
POLICY = CallPolicy(None, 60.0, is_transient=lambda _: False)
FOREVER = float("inf")


def other_policy() -> CallPolicy:
    """Make a policy that is equal to no other."""
    return CallPolicy(Retry(), 60.0, is_transient=lambda _: False)


class Recorder(Driver):
    """Keeps the batches instead of sending them."""

    sent: list[PublishBatch]

    def submit(self, batch: PublishBatch) -> None:
        self.sent.append(batch)


class Bench(Threads):
    """A sender on virtual time whose batches are kept."""

    driver_class = Recorder
    driver: Recorder

    def __init__(
        self,
        *,
        flow: PublishFlowControl = PublishFlowControl(),  # noqa: B008 - a named tuple
        **batch_settings: Any,
    ) -> None:
        super().__init__(tokens=0, flow=flow)
        self.sent = self.driver.sent = []
        self.sender = Sender(
            limits=Limits(*BatchSettings(**batch_settings)),
            flow_control=self.flow_control,
            is_traced=False,
            driver=self.driver,
            library=self.time,
            workers=self.workers,
            clock=self.clock,
        )

    def add(
        self, policy: CallPolicy = POLICY, *, topic: str = TOPIC, mailbox: Any = None
    ) -> PublishFuture:
        """Put a message into its mailbox, as ``publish()`` does."""
        future: PublishFuture = message(b"data")
        if self.flow_control.counts:
            future.permit = Permit(6)
            self.flow_control.add(future.permit)
        mailbox = mailbox or self.sender.mailbox(topic, policy)
        mailbox.queue.append(future)
        if len(mailbox.queue) >= mailbox.wanted or len(future.body) > mailbox.bound:
            mailbox.take()
        return future


def test_a_batch_that_waited_enough_is_sent() -> None:
    """The first message of a batch starts the clock; all topics go when it has run out."""
    bench = Bench(max_latency=0.5)
    bench.add()
    bench.time.advance(0.3)
    bench.add(topic="projects/test/topics/other")
    assert bench.sent == []
    bench.time.advance(0.5)
    assert [batch.topic for batch in bench.sent] == [TOPIC, "projects/test/topics/other"]
    bench.time.advance(5.0)
    assert len(bench.sent) == 2
    bench.add()
    bench.time.advance(5.5)
    assert len(bench.sent) == 3


def test_policies_never_share_a_batch() -> None:
    """Two messages with different retries or timeouts are different requests."""
    bench, other = Bench(), other_policy()
    made = [bench.add(given) for given in (POLICY, other, POLICY, other)]
    assert set(bench.sender.send_all()) == set(made)
    assert [batch.messages for batch in bench.sent] == [made[::2], made[1::2]]


def test_a_mailbox_that_is_empty_is_forgotten() -> None:
    """A new ``Retry`` for each message leaves nothing behind; a usual topic keeps its mailbox."""
    bench = Bench(max_messages=1)
    usual = bench.sender.mailbox(TOPIC, POLICY)
    bench.sender.make_usual(TOPIC, usual)
    for _ in range(10):
        bench.add()
        bench.add(other_policy())
    assert len(bench.sent) == 20
    assert list(bench.sender._mailboxes.values()) == [usual]


def test_mailboxes_of_very_many_topics_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first, even if a timer runs all the time; every message is sent."""
    monkeypatch.setattr(sender, "MAX_TOPICS", 10)
    bench = Bench(max_latency=0.5)
    for number in range(100):
        topic = f"projects/test/topics/{number}"
        bench.sender.make_usual(topic, bench.sender.mailbox(topic, POLICY))
        bench.add(topic=topic)
        bench.time.advance(0.1 * number)
        assert len(bench.sender._watched) <= 20
        assert len(bench.sender._mailboxes) <= 20
    bench.time.advance(20.0)
    assert [batch.topic for batch in bench.sent] == [
        f"projects/test/topics/{number}" for number in range(100)
    ]
    assert list(bench.sender.usual.values()) == list(bench.sender._mailboxes.values())
    assert f"projects/test/topics/{number}" in bench.sender.usual


def test_a_mailbox_in_use_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is among the oldest and has a message is forgotten when that is sent."""
    monkeypatch.setattr(sender, "MAX_TOPICS", 2)
    bench = Bench(max_latency=FOREVER)
    made = []
    for number in range(5):
        topic = f"projects/test/topics/{number}"
        bench.sender.make_usual(topic, bench.sender.mailbox(topic, POLICY))
        made.append(bench.add(topic=topic))
    assert set(bench.sender.send_all()) == set(made)
    assert len(bench.sent) == 5
    assert len(bench.sender._mailboxes) == len(bench.sender.usual) <= 3


def test_a_forgotten_mailbox_still_sends() -> None:
    """A caller may have had it at hand when it was forgotten."""
    bench = Bench(max_messages=10)
    at_hand = bench.sender.mailbox(TOPIC, POLICY)
    at_hand.take()
    assert bench.sender.mailbox(TOPIC, POLICY) is not at_hand
    future = bench.add(mailbox=at_hand)
    assert bench.sender.send_all() == [future]
    assert len(bench.sent) == 1


def test_a_stopped_sender_takes_nothing() -> None:
    """It says why; a message that was on its way into a mailbox is sent at once."""
    bench = Bench(max_latency=FOREVER)
    sender = bench.sender
    at_hand = sender.mailbox(TOPIC, POLICY)
    sender.make_usual(TOPIC, at_hand)
    sender.refuse("no more")
    sender.make_usual(TOPIC, at_hand)
    assert sender.usual == {}
    with pytest.raises(RuntimeError, match="no more"):
        bench.add()
    bench.add(mailbox=at_hand)
    assert len(bench.sent) == 1


def test_what_comes_just_before_the_stop_shares_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that is stopped while the thread moves messages sends the same batches."""
    bench = Bench(max_latency=FOREVER)
    mailbox = bench.sender.mailbox(TOPIC, POLICY)
    made = []
    open_batch = mailbox._open_batch

    def publish_and_stop_meanwhile() -> PublishBatch:
        mailbox.wanted = mailbox.bound = 9
        made.append(bench.add(mailbox=mailbox))
        bench.sender.refuse("stopped")
        return open_batch()

    monkeypatch.setattr(mailbox, "_open_batch", publish_and_stop_meanwhile)
    made.append(bench.add(mailbox=mailbox))
    assert [batch.messages for batch in bench.sent] == [made[::-1]]


def test_timers_get_their_turn_between_batches() -> None:
    """A flood of messages does not keep a hedge waiting; the rest is moved right after it."""
    bench = Bench(max_messages=2, max_latency=FOREVER)
    mailbox = bench.sender.mailbox(TOPIC, POLICY)
    put: list[Any] = []
    bench.time.put = put.append

    def take_long(batch: PublishBatch) -> None:
        bench.time.now += 0.002
        bench.sent.append(batch)

    bench.driver.submit = take_long  # type: ignore[method-assign]
    mailbox.wanted = mailbox.bound = 1000
    made = [bench.add(mailbox=mailbox) for _ in range(9)]
    mailbox.take()
    assert bench.time.pending == 0, "an infinite latency starts no clock"
    assert len(bench.sent) == 3
    assert put == [mailbox]
    made.append(bench.add(mailbox=mailbox))
    assert put == [mailbox], "the thread is told once"
    while put:
        put.pop().take()
    assert [future for batch in bench.sent for future in batch.messages] == made[:9]
    assert set(bench.sender.send_all()) == set(made)


@pytest.mark.parametrize("fails", [False, True])
def test_there_is_room_before_the_futures_are_done(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is told of the outcome can publish at once; each message is released once."""
    bench = Bench(flow=limited(messages=2, behavior=ERROR))
    limits = bench.flow_control._limits
    made = [bench.add() for _ in range(2)]
    assert limits.messages == 2
    assert bench.sender.send_all() == made
    (batch,) = bench.sent
    done: list[int] = []
    release = bench.flow_control.release

    def releasing(permit: Permit) -> None:
        done.append(sum(future.done() for future in made))
        release(permit)

    monkeypatch.setattr(bench.flow_control, "release", releasing)
    if fails:
        bench.driver.fail(batch, Fail(ValueError()))
    else:
        bench.driver.resolve(batch, ["1", "2"], 0)
    bench.driver.fail(batch, Fail(ValueError("a second outcome finds nothing left")))
    assert done[0] == 0
    assert (limits.messages, limits.bytes) == (0, 0)
    assert bench.sender.send_all() == []
    assert isinstance(made[0].exception(), ValueError) is fails


def test_batches_can_be_held_back() -> None:
    """At the end of the interpreter, whoever asks for them sends them."""
    bench = Bench(max_messages=2)
    made = [bench.add() for _ in range(2)]
    (sent,) = bench.sent
    (held,) = bench.sender.hold_back()
    assert [sent.messages, held.messages] == [made[:1], made[1:]]
    bench.add()
    bench.add()
    assert bench.sent == [sent]


def test_two_outcomes_at_once() -> None:
    """A future keeps its outcome, in whichever garbage collection a second one comes."""

    def fail(bench: Bench, future: PublishFuture, seen: list[Any], _: str) -> None:
        bench.driver.fail(bench.sent[0], Fail(ValueError()))
        seen += [future.exception(timeout=0)] if future.done() else []

    for number in itertools.count():
        bench = Bench()
        future = bench.add()
        bench.sender.send_soon()
        seen: list[BaseException | None] = []
        resolve = functools.partial(bench.driver.resolve, bench.sent[0], ["1"], 0)
        end = interrupt_collection(resolve, number, functools.partial(fail, bench, future, seen))
        assert not end.lost
        assert [future.exception(timeout=0)] * len(seen) == seen, end.place
        if number and end.place is None:
            break


@pytest.mark.parametrize("ends_first", [False, True])
def test_the_end_of_a_call_is_not_missed(ends_first: bool) -> None:
    """Whoever comes second sees the other, also in a garbage collection in the middle of that."""
    for number in itertools.count():
        called: list[Any] = []
        call = DirectCall(lambda data: data, 0, lambda *_: None)
        ask = functools.partial(call.when_ended, lambda *it: called.append(it), None, 0)  # noqa: B023
        end = functools.partial(call, None)
        first, second = (end, ask) if ends_first else (ask, end)
        place = interrupt_collection(first, number, lambda _: second()).place  # noqa: B023
        if place is None:
            second()
        assert called == [(None, 0, call)], place
        if number and place is None:
            break
