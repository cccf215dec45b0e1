"""The driver on virtual time: the scenarios, and what can go wrong around the engine."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from functools import partial

import pytest

from hedged_pubsub._sync.driver import Driver
from hedged_pubsub._sync.scheduler import Wakeup
from hedged_pubsub.events import Fail
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats

from .fakes import FakeBatch, FakeCall, virtual_driver
from .story import SCENARIOS, Permanent, Scenario, Transient


def earn(driver: Driver, tokens: int) -> None:
    """Let batches succeed until the bucket holds ``tokens``."""
    for _ in range(tokens * 10):
        batch = FakeBatch()
        driver.submit(batch)
        batch.calls[0].succeed()


@pytest.mark.parametrize(
    "scenario",
    [s for s in SCENARIOS if s.hedge_delay is not None],
    ids=lambda scenario: scenario.name,
)
def test_scenario(scenario: Scenario) -> None:
    """The driver sends, cancels and resolves as the scenario tells, and counts it right."""
    driver, time = virtual_driver(
        HedgingSettings(hedge_delay=scenario.hedge_delay or 1, max_tokens=10)
    )
    earn(driver, scenario.tokens)
    before = driver.stats()
    assert before.tokens == scenario.tokens
    replies = iter(scenario.replies)
    story: list[str] = []
    scripted: list[Wakeup] = []
    batch = FakeBatch(total_timeout=scenario.total_timeout, backoffs=scenario.backoffs)

    def on_send(call: FakeCall) -> None:
        limit = "" if call.timeout is None else f" timeout {call.timeout:g}"
        story.append(f"{time.now:.3f} start {call.attempt}{limit}")
        reply = next(replies, None)
        if reply is None or reply.after == math.inf:
            return
        error = reply.error
        answer = call.succeed if error is None else partial(call.fail, error())
        scripted.append(time.call_at(time.now + reply.after, answer))

    batch.on_send = on_send
    driver.submit(batch)
    while not batch.outcomes:
        suppressed = driver.stats().hedges_suppressed
        time.advance(math.nextafter(min(when for when, _, w in time._due if w.callback), math.inf))
        if driver.stats().hedges_suppressed > suppressed:
            story.append(f"{time.now:.3f} suppressed")
    cancelled = [call.attempt for call in batch.calls if call.cancelled]
    story += [f"{time.now:.3f} cancel {attempt}" for attempt in cancelled]
    (outcome,) = batch.outcomes
    if isinstance(outcome, Fail):
        late = " retry timed out" if outcome.retry_timed_out else ""
        story.append(f"{time.now:.3f} fail {type(outcome.error).__name__}{late}")
    else:
        assert isinstance(outcome, tuple)
        story.append(f"{time.now:.3f} resolve {outcome[1]}")

    assert tuple(story) == scenario.story
    stats = driver.stats()
    assert stats.tokens == pytest.approx(scenario.tokens_after)
    words = [line.split()[1:] for line in scenario.story]
    assert stats.batches - before.batches == 1
    assert stats.attempts - before.attempts == sum(word[0] == "start" for word in words)
    assert stats.hedges_sent == sum(word[0] == "start" and word[1] != "0" for word in words)
    assert stats.hedges_won == sum(word[0] == "resolve" and word[1] != "0" for word in words)
    assert stats.hedges_suppressed == sum(word[0] == "suppressed" for word in words)
    assert stats.attempts_cancelled == sum(word[0] == "cancel" for word in words)
    for answer_to_a_loser in scripted:
        answer_to_a_loser.cancel()
    assert time.pending == 0, "a decided batch leaves no wake-up behind"


def test_topics_have_buckets_of_their_own() -> None:
    """R9: what one topic earned, another cannot spend."""
    driver, time = virtual_driver()
    earn(driver, 1)
    other = FakeBatch()
    other.topic = "other"
    driver.submit(other)
    time.advance(1.5)
    assert len(other.calls) == 1
    assert driver.stats("topic").tokens == 1
    assert driver.stats("other").hedges_suppressed == 1
    assert driver.stats("never seen") == HedgingStats()
    assert driver.stats().batches == 11


def test_a_cancelled_loser_is_not_judged() -> None:
    """R7: the retry predicate never hears of our own cancellation."""
    driver, time = virtual_driver()
    earn(driver, 1)
    batch = FakeBatch()
    driver.submit(batch)
    time.advance(1.0)
    original, hedge = batch.calls
    hedge.succeed("from the hedge")
    assert original.cancelled
    assert batch.outcomes == [("from the hedge", 1)]
    assert batch.judged == []
    time.advance(100.0)
    assert len(batch.calls) == 2


def test_an_error_on_sending_the_original_is_judged() -> None:
    """R8: a closed channel or an interceptor that raises ends the batch with the error."""
    driver, _ = virtual_driver()
    batch = FakeBatch()
    error = ValueError("closed channel")

    def refuse(call: FakeCall) -> None:
        raise error

    batch.on_send = refuse
    driver.submit(batch)
    assert batch.judged == [error]
    assert batch.outcomes == [Fail(error)]


def test_an_error_on_sending_a_hedge_is_the_hedges() -> None:
    """R5: a hedge that cannot be sent does not fail the batch."""
    driver, time = virtual_driver()
    earn(driver, 2)
    batch = FakeBatch()

    def refuse_hedges(call: FakeCall) -> None:
        if call.attempt:
            raise ValueError("closed channel")

    batch.on_send = refuse_hedges
    driver.submit(batch)
    time.advance(2.5)
    assert [call.attempt for call in batch.calls] == [0, 1, 2]
    assert batch.outcomes == []
    batch.calls[0].succeed()
    assert batch.outcomes == [("answer", 0)]


def test_an_error_in_the_predicate_ends_the_batch() -> None:
    """R8: a user's predicate that raises fails the batch with what it raised."""
    driver, _ = virtual_driver()
    batch = FakeBatch()
    defect = ZeroDivisionError()

    def judge(error: BaseException) -> object:
        raise defect

    batch.judge = judge  # type: ignore[method-assign, assignment]
    driver.submit(batch)
    batch.calls[0].fail(Transient())
    assert batch.outcomes == [Fail(defect)]


def test_a_keyboard_interrupt_while_sending_reaches_the_user_and_ends_the_batch() -> None:
    """R8: Ctrl-C on the publishing thread is not swallowed, and no future stays pending."""
    driver, _ = virtual_driver()
    batch = FakeBatch()

    def interrupt(call: FakeCall) -> None:
        raise KeyboardInterrupt

    batch.on_send = interrupt
    with pytest.raises(KeyboardInterrupt):
        driver.submit(batch)
    (outcome,) = batch.outcomes
    assert isinstance(outcome, Fail)
    assert isinstance(outcome.error, KeyboardInterrupt)


def test_a_hedge_decided_over_while_it_is_sent_is_cancelled() -> None:
    """The original is answered on another thread while the hedge is being handed to gRPC."""
    driver, time = virtual_driver()
    earn(driver, 1)
    batch = FakeBatch()

    def answer_the_original_meanwhile(call: FakeCall) -> None:
        if call.attempt == 1:
            batch.calls[0].succeed()

    batch.on_send = answer_the_original_meanwhile
    driver.submit(batch)
    time.advance(1.0)
    assert batch.outcomes == [("answer", 0)]
    assert batch.calls[1].cancelled
    assert driver.stats().attempts_cancelled == 1


def test_a_hedge_decided_over_before_it_is_sent_is_not_sent() -> None:
    """The workers are late, and the original was answered before they came to the hedge."""
    driver, time = virtual_driver()
    earn(driver, 1)
    batch = FakeBatch()
    waiting: list[tuple[object, ...]] = []
    driver._workers.submit = lambda *job: waiting.append(job)  # type: ignore[method-assign]
    driver.submit(batch)
    time.advance(1.0)
    assert len(waiting) == 1
    batch.calls[0].succeed()
    for function, *args in waiting:
        function(*args)  # type: ignore[operator]
    assert [call.attempt for call in batch.calls] == [0]
    assert batch.outcomes == [("answer", 0)]
    assert driver.stats().hedges_sent == 0


def test_abandon_ends_every_batch() -> None:
    """Closing ends what is under way, and says how much that was."""
    driver, time = virtual_driver()
    earn(driver, 1)
    batches = [FakeBatch() for _ in range(3)]
    for batch in batches:
        driver.submit(batch)
    time.advance(1.0)
    error = RuntimeError("closed")
    assert driver.abandon(error) == 3
    for batch in batches:
        assert batch.outcomes == [Fail(error)]
        assert all(call.cancelled for call in batch.calls)
    assert time.pending == 0
    assert driver.abandon(error) == 0


def test_calls_are_held_until_decided_and_not_longer() -> None:
    """A call that nobody refers to gRPC cancels; a decided batch, on the contrary, is let go."""
    driver, _ = virtual_driver()
    batch = FakeBatch()
    driver.submit(batch)
    call = weakref.ref(batch.calls.pop())
    gc.collect()
    original = call()
    assert original is not None
    original.succeed()
    del original
    decided = weakref.ref(batch)
    del batch
    gc.collect()
    assert call() is None
    assert decided() is None


def test_a_defect_of_the_driver_ends_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    """R8: an event the engine refuses is logged, and the batch ends with that error."""
    driver, _ = virtual_driver()
    batch = FakeBatch()
    driver.submit(batch)
    (run,) = driver._runs
    with caplog.at_level(logging.ERROR):
        driver._failed(run, 3, Permanent())
    (outcome,) = batch.outcomes
    assert isinstance(outcome, Fail)
    assert "attempt 3 cannot end" in str(outcome.error)
    assert batch.calls[0].cancelled
    assert "cannot go on" in caplog.text
