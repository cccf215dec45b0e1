"""The asyncio driver on virtual time: the scenarios, and what can go wrong around the engine."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import math
import weakref
from functools import partial

import pytest
from google.api_core import exceptions

from hedged_pubsub.aio.driver import Driver
from hedged_pubsub.events import Fail, Failed, Succeeded
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats
from hedged_pubsub.token_bucket import TokenBucket

from ..story import SCENARIOS, Permanent, Scenario, Transient
from .fakes import FakeBatch, FakeCall, earn, turns
from .virtual_loop import EAGER, VirtualLoop, virtual_run

SETTINGS = HedgingSettings()

tasks = pytest.mark.parametrize(
    "tasks",
    [
        "lazy",
        pytest.param(
            EAGER, marks=pytest.mark.skipif(EAGER is None, reason="no eager tasks before 3.12")
        ),
    ],
    ids=["lazy", "eager"],
)


@tasks
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, tasks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver sends, cancels and resolves as the scenario tells, and counts it right."""
    settings = None
    if scenario.hedge_delay is not None:
        settings = HedgingSettings(hedge_delay=scenario.hedge_delay, max_tokens=10)

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(settings, loop)
        await earn(driver, scenario.tokens)
        before = driver.stats()
        start = loop.now
        replies = iter(scenario.replies)
        story: list[str] = []
        batch = FakeBatch(total_timeout=scenario.total_timeout, backoffs=scenario.backoffs)

        def note(what: str) -> None:
            story.append(f"{loop.now - start:.3f} {what}")

        def on_send(call: FakeCall) -> None:
            limit = "" if call.timeout is None else f" timeout {call.timeout:g}"
            note(f"start {call.attempt}{limit}")
            reply = next(replies, None)
            if reply is None or reply.after == math.inf:
                return
            answer = call.succeed if reply.error is None else partial(call.fail, reply.error())
            loop.call_later(reply.after, answer)

        take = TokenBucket.take

        def watched_take(bucket: TokenBucket) -> bool:
            taken = take(bucket)
            if not taken:
                note("suppressed")
            return taken

        monkeypatch.setattr(TokenBucket, "take", watched_take)
        batch.on_send = on_send
        driver.submit(batch)
        await batch.ended.wait()
        await turns()
        for call in batch.calls:
            if call.cancelled:
                note(f"cancel {call.attempt}")
        (outcome,) = batch.outcomes
        if isinstance(outcome, Fail):
            late = " retry timed out" if outcome.retry_timed_out else ""
            note(f"fail {type(outcome.error).__name__}{late}")
        else:
            assert isinstance(outcome, tuple)
            note(f"resolve {outcome[1]}")

        assert tuple(story) == scenario.story
        stats = driver.stats("topic")
        words = [line.split()[1:] for line in scenario.story]
        starts = [word[1] for word in words if word[0] == "start"]
        assert stats.tokens == pytest.approx(scenario.tokens_after if settings else 0)
        assert stats.batches - before.batches == 1
        assert stats.attempts - before.attempts == len(starts)
        assert stats.hedges_sent == len(starts) - starts.count("0")
        assert stats.hedges_won == sum(w[0] == "resolve" and w[1] != "0" for w in words)
        assert stats.hedges_suppressed == sum(w[0] == "suppressed" for w in words)
        assert stats.attempts_cancelled == sum(w[0] == "cancel" for w in words)
        await asyncio.sleep(20)  # answers to losers
        assert len(batch.outcomes) == 1
        assert loop.timers == 0, "a decided batch leaves no wake-up behind"

    virtual_run(main, tasks=tasks)


@tasks
def test_topics_have_buckets_of_their_own(tasks: str) -> None:
    """R9: what one topic earned, another cannot spend."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        await earn(driver, 1)
        other = FakeBatch()
        other.topic = "other"
        driver.submit(other)
        await asyncio.sleep(1.5)
        assert len(other.calls) == 1
        assert driver.stats("topic").tokens == 1
        assert driver.stats("other").hedges_suppressed == 1
        assert driver.stats("never seen") == HedgingStats()
        assert driver.stats().batches == 11
        other.calls[0].succeed()
        await other.ended.wait()

    virtual_run(main, tasks=tasks)


@tasks
def test_a_cancelled_loser_is_not_judged(tasks: str) -> None:
    """R7: the retry predicate never hears of our own cancellation."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        await earn(driver, 1)
        batch = FakeBatch()
        driver.submit(batch)
        await asyncio.sleep(1.0)
        await turns()
        original, hedge = batch.calls
        hedge.succeed("from the hedge")
        await batch.ended.wait()
        await asyncio.sleep(100)
        assert original.cancelled
        assert batch.outcomes == [("from the hedge", 1)]
        assert batch.judged == []
        assert len(batch.calls) == 2

    virtual_run(main, tasks=tasks)


def test_a_losers_late_error_is_nobodys() -> None:
    """A loser that fails in spite of being cancelled is neither judged nor reported by asyncio."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        await earn(driver, 1)
        batch = FakeBatch()
        driver.submit(batch)
        await asyncio.sleep(1.0)
        await turns()
        original, hedge = batch.calls
        hedge.succeed()
        original.fail(Permanent())  # in the same turn, so that there is nothing left to cancel
        await batch.ended.wait()
        await turns()
        del original
        gc.collect()
        assert len(batch.outcomes) == 1
        assert driver.stats().attempts_cancelled == sum(call.cancelled for call in batch.calls)

    virtual_run(main)


@tasks
def test_an_error_on_sending_the_original_is_judged(tasks: str) -> None:
    """R8: a closed channel or an interceptor that raises ends the batch with the error."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        batch = FakeBatch()
        error = ValueError("closed channel")

        def refuse(call: FakeCall) -> None:
            raise error

        batch.on_send = refuse
        driver.submit(batch)
        assert batch.outcomes == [], "decided before submit() returned"
        await batch.ended.wait()
        assert batch.judged == [error]
        assert batch.outcomes == [Fail(error)]

    virtual_run(main, tasks=tasks)


@tasks
def test_an_error_on_sending_a_hedge_is_the_hedges(tasks: str) -> None:
    """R5: a hedge that cannot be sent does not fail the batch."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        await earn(driver, 2)
        batch = FakeBatch()

        def refuse_hedges(call: FakeCall) -> None:
            if call.attempt:
                raise ValueError("closed channel")

        batch.on_send = refuse_hedges
        driver.submit(batch)
        await asyncio.sleep(2.5)
        assert [call.attempt for call in batch.calls] == [0, 1, 2]
        assert batch.outcomes == []
        batch.calls[0].succeed()
        await batch.ended.wait()
        assert batch.outcomes == [("answer", 0)]

    virtual_run(main, tasks=tasks)


@tasks
def test_an_error_in_the_predicate_ends_the_batch(tasks: str) -> None:
    """R8: a user's predicate that raises fails the batch with what it raised."""
    defect = ZeroDivisionError()

    class Defective(FakeBatch):
        def judge(self, error: BaseException) -> Failed:
            raise defect

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        batch = Defective()
        batch.on_send = lambda call: call.fail(Transient())
        driver.submit(batch)
        await batch.ended.wait()
        assert batch.outcomes == [Fail(defect)]

    virtual_run(main, tasks=tasks)


@tasks
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_a_task_that_others_cancel_ends_the_batch(tasks: str, begun: bool) -> None:
    """R8: when all tasks of the loop are cancelled, no future stays pending; none is cancelled."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        batch = FakeBatch()
        driver.submit(batch)
        if begun:
            await turns()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await batch.ended.wait()
        (outcome,) = batch.outcomes
        assert isinstance(outcome, Fail)
        assert isinstance(outcome.error, exceptions.Cancelled)
        assert loop.timers == 0
        await turns()

    virtual_run(main, tasks=tasks)


@tasks
def test_abandon_ends_every_batch(tasks: str) -> None:
    """Closing ends what is under way, says how much that was, and leaves no task behind."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        await earn(driver, 1)
        batches = [FakeBatch() for _ in range(3)]
        for batch in batches:
            driver.submit(batch)
        await asyncio.sleep(1.0)
        await turns()
        error = RuntimeError("closed")
        assert driver.abandon(error) == 3
        await driver.wait_for_tasks(1.0)
        for batch in batches:
            assert batch.outcomes == [Fail(error)]
            assert all(call.cancelled for call in batch.calls)
        assert loop.timers == 0
        assert driver.abandon(error) == 0

    virtual_run(main, tasks=tasks)


def test_waiting_for_tasks_has_an_end() -> None:
    """An interceptor that swallows the cancellation holds up closing for the timeout only."""

    class Stubborn(FakeBatch):
        async def send(self, attempt: int, timeout: float | None) -> object:
            try:
                return await super().send(attempt, timeout)
            except asyncio.CancelledError:
                await asyncio.sleep(60)
                raise

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        driver.submit(Stubborn())
        await turns()
        driver.abandon(RuntimeError())
        await driver.wait_for_tasks(1.0)
        assert loop.now == pytest.approx(1.0)
        await asyncio.sleep(60)

    virtual_run(main)


def test_a_loop_that_calls_early_loses_no_wakeup() -> None:
    """A timer may be early by the resolution of the loop's clock: uvloop's counts milliseconds."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        await earn(driver, 1)
        batch = FakeBatch()
        driver.submit(batch)
        loop._let_pass = lambda seconds: None  # type: ignore[method-assign]
        (run,) = driver._runs
        assert run.wakeup is not None
        assert run.wakeup_at is not None
        run.wakeup.cancel()
        driver._wake(run, run.wakeup_at)
        await turns()
        assert loop.now == 0
        assert [call.attempt for call in batch.calls] == [0, 1]
        assert run.wakeup_at == 2.0
        batch.calls[1].succeed()
        await batch.ended.wait()
        await turns()

    virtual_run(main)


@tasks
def test_requests_do_not_inherit_the_publishers_context(tasks: str) -> None:
    """Who happens to complete a batch, within a span perhaps, has no part in its requests."""
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")
    seen: list[str] = []

    class Looking(FakeBatch):
        def judge(self, error: BaseException) -> Failed:
            seen.append(span.get())
            return super().judge(error)

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        await earn(driver, 1)
        batch = Looking()
        batch.on_send = lambda _: seen.append(span.get())
        span.set("a user's")
        driver.submit(batch)
        await turns()
        batch.calls[0].fail(Transient())
        await asyncio.sleep(1.5)
        assert [call.attempt for call in batch.calls] == [0, 0, 1]
        batch.calls[1].succeed()
        await batch.ended.wait()
        await turns()
        assert seen == ["none"] * 4
        assert span.get() == "a user's"

    virtual_run(main, tasks=tasks)


def test_a_decided_batch_is_let_go() -> None:
    """However far its next look was, nothing keeps a decided batch alive."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        batch = FakeBatch()
        batch.on_send = FakeCall.succeed
        driver.submit(batch)
        await batch.ended.wait()
        await turns()
        alive = weakref.ref(batch)
        del batch
        gc.collect()
        assert alive() is None

    virtual_run(main)


def test_tasks_are_held_until_they_end() -> None:
    """A task that nobody else refers to, and that waits, survives the collector."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        batch = FakeBatch()
        driver.submit(batch)
        for _ in range(3):
            await turns()
            gc.collect()
        batch.calls[0].succeed()
        await batch.ended.wait()
        assert batch.outcomes == [("answer", 0)]

    virtual_run(main)


def test_a_defect_of_the_driver_ends_the_batch(caplog: pytest.LogCaptureFixture) -> None:
    """R8: an event the engine refuses is logged, and the batch ends with that error."""

    async def main(loop: VirtualLoop) -> None:
        driver = Driver(SETTINGS, loop)
        batch = FakeBatch()
        driver.submit(batch)
        await turns()
        (run,) = driver._runs
        with caplog.at_level(logging.ERROR):
            driver._feed(run, Succeeded(3))
        (outcome,) = batch.outcomes
        assert isinstance(outcome, Fail)
        assert "attempt 3 cannot end" in str(outcome.error)
        await turns()
        assert batch.calls[0].cancelled
        assert "cannot go on" in caplog.text

    virtual_run(main)
