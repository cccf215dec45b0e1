"""The runs of a publisher: every scenario, the numbers, and what ends a batch whatever happens."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock
from unittest.mock import call as expected

import pytest
from google.api_core.exceptions import Unauthenticated

from hedged_pubsub._core import log
from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.engine import AttemptEngine
from hedged_pubsub._core.events import (
    ORIGINAL,
    Abandoned,
    Call,
    Cancel,
    Event,
    Fail,
    Failed,
    Order,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
    WakeAt,
    Woke,
)
from hedged_pubsub._core.hedge_delay import HedgeDelay
from hedged_pubsub._core.hedge_log import HedgeEnded
from hedged_pubsub._core.runs import WOKE, Runs, carry_out
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import HedgingStats
from hedged_pubsub._core.topic_state import TopicState

from .fakes import refuse
from .replay import core_batch
from .story import SCENARIOS, Permanent, Scenario, Transient, earn, play

DEFECT = ZeroDivisionError("a defect")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario) -> None:
    """The story is the scenario's, to the token, and so are the numbers."""
    runs, story = play(scenario)
    assert story == scenario.lines
    before, after = scenario.tokens
    assert runs.topics["topic"].bucket.tokens == after
    assert runs.batches == {}
    stats = runs.stats()
    assert stats.tokens == (after if scenario.settings else 0)
    earned = HedgingStats(batches=before * 10)
    # Who cancels counts that, for it knows whether there was something to cancel.
    assert scenario.added(earned, stats) == {**scenario.counts, "attempts_cancelled": 0}


def make_runs(tokens: int = 0, **settings: Any) -> Runs[Batch]:
    """Make runs that hedge after a second and have some tokens."""
    runs: Runs[Batch] = Runs(HedgingSettings(**{"hedge_delay": 1.0, **settings}))
    earn(runs, tokens)
    return runs


def commit(
    runs: Runs[Batch], topic: str = "topic", *, now: float = 0.0
) -> tuple[Batch, Sequence[Order]]:
    """Commit a batch and return the orders, too."""
    batch = Batch(topic, math.inf, has_extras=False)
    return batch, runs.commit(batch, now)


class Durations:
    """Takes what batches took, and wants to record it each time."""

    def __init__(self) -> None:
        self.added: list[tuple[str, str, str, float]] = []

    def add(self, topic: str, outcome: str, error: str, seconds: float) -> bool:
        self.added.append((topic, outcome, error, seconds))
        return True

    def record(self) -> None:
        self.added.clear()


def tokens(runs: Runs[Batch]) -> float:
    """Return the tokens of the topic."""
    return runs.topics["topic"].tokens


def test_a_timer_is_set_first_and_once() -> None:
    """Sending may take its time; a wish that was told is not told again."""
    runs = make_runs(1)
    batch, orders = commit(runs)
    assert orders == [WakeAt(1.0), Start(ORIGINAL)]
    assert runs.handle(batch, WOKE, 0.9) == []
    assert runs.handle(batch, WOKE, 1.0) == [WakeAt(2.0), Start(1, timeout=10.0)]
    failed = Failed(ORIGINAL, Transient(), transient=True, backoff=0.25)
    assert runs.handle(batch, failed, 1.5) == [WakeAt(1.75)]
    assert runs.handle(batch, WOKE, 1.75) == [WakeAt(2.0), Start(ORIGINAL)]
    assert runs.handle(batch, Failed(1, Permanent()), 1.8) == []
    assert runs.handle(batch, Succeeded(ORIGINAL), 1.9) == [Resolve(ORIGINAL)]


@pytest.mark.parametrize("ends_with", [Succeeded(ORIGINAL), Failed(ORIGINAL, Permanent())])
def test_the_token_of_a_hedge_that_is_not_sent_goes_back(ends_with: Event) -> None:
    """R9: whoever was to send it came too late; nothing is counted, and no bucket overflows."""
    runs = make_runs(3, max_tokens=3)
    batch, _ = commit(runs)
    runs.handle(batch, WOKE, 1.0)
    assert tokens(runs) == 2
    runs.handle(batch, ends_with, 1.1)
    before = tokens(runs)
    assert not runs.is_wanted(batch, 1, 1.2, is_logged=True)
    assert tokens(runs) == min(before + 1, 3)
    assert not runs.is_wanted(batch, ORIGINAL, 1.2, is_logged=False)
    assert tokens(runs) == min(before + 1, 3), "only hedges are paid for"
    stats = runs.stats()
    assert (stats.attempts, stats.hedges_sent, stats.possible_duplicates) == (0, 0, 0)


def commit_hedged(runs: Runs[Batch]) -> Batch:
    """Commit a batch whose hedge was sent after a second, and will be logged."""
    batch, _ = commit(runs)
    runs.handle(batch, WOKE, 1.0)
    assert runs.is_wanted(batch, 1, 1.0, is_logged=True)
    return batch


@pytest.mark.filterwarnings("ignore:refill_ratio .* must exceed")
def test_an_original_that_lost_counts_as_one_of_the_slower_ones() -> None:
    """The hedge delay does not shrink to the time at which originals are cancelled."""
    runs = make_runs(1, hedge_delay=HedgeDelay.percentile(0.9))  # ten that took no time
    for seconds in (*[0.0] * 8, 3.0):
        batch, _ = commit(runs)
        for second in range(1, int(seconds)):
            runs.handle(batch, Woke(shares_wait=True), second)
        runs.handle(batch, Succeeded(ORIGINAL), seconds)
    hedged = commit_hedged(runs)
    runs.handle(hedged, Succeeded(1), 1.5)
    assert runs.topics["topic"].hedge_delay == 3.0, "the second largest of twenty"


def test_a_batch_is_ended_once_whether_it_was_committed_or_not() -> None:
    """R8: the publisher is closed, or an error came before, in or after the commit."""
    runs, error = make_runs(1), RuntimeError("closed")
    hedged = commit_hedged(runs)
    fresh, _ = commit(runs, now=1.0)
    decided, _ = commit(runs, now=1.0)
    runs.handle(decided, Succeeded(ORIGINAL), 1.1)
    assert list(runs.batches.values()) == [hedged, fresh]
    assert runs.handle(fresh, Abandoned(error), 3.0) == [Cancel(0), Fail(error)]
    *orders, line, failure = runs.end(hedged, error, 1.5)
    assert orders == [Cancel(0), Cancel(1), Fail(error)]
    ended: HedgeEnded = line.function.__self__  # type: ignore[union-attr]
    assert (ended.outcome, ended.duration) == ("cancelled", 0.5)
    assert failure == Fail(error)
    assert hedged.run.decided
    assert runs.end(hedged, error, 1.5) == [Fail(error)]
    assert runs.end(Batch("topic", math.inf, has_extras=False), error, 1.5) == [Fail(error)]
    assert runs.batches == {}
    assert runs.stats().batches_failed == 2


def test_a_batch_whose_commit_was_interrupted_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: with the error of the interruption, whoever wants to know what batches take."""
    runs = make_runs()
    runs.durations = Durations()
    batch = Batch("topic", math.inf, has_extras=False)
    error = KeyboardInterrupt()
    with monkeypatch.context() as interrupted:
        interrupted.setattr(AttemptEngine, "handle", refuse(error))
        with pytest.raises(KeyboardInterrupt):
            runs.commit(batch, 1.0)
    failure, record, again = runs.end(batch, error, 1.5)
    assert isinstance(record, Call)
    assert failure == again == Fail(error)
    assert runs.batches == {}


@pytest.mark.parametrize("broken", [False, True])
def test_a_forked_child_sends_nothing_of_its_parents(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """GRPC cancels the copies of the calls there: no batch may take that for an error to retry.

    A batch that cannot even be abandoned, after a fork in the middle of a change, ends when it is
    told of.
    """
    runs = make_runs(1)
    batch, _ = commit(runs)
    other, _ = commit(runs)
    failed = Failed(ORIGINAL, Transient(), transient=True, backoff=0.1)
    with monkeypatch.context() as change:
        if broken:
            change.setattr(AttemptEngine, "handle", refuse(DEFECT))
        runs.reset_after_fork()
        assert runs.stats() == HedgingStats()
        assert runs.batches == {}
        orders = runs.handle(batch, failed, 0.5)
    assert [order for order in orders if isinstance(order, Fail)] == [Fail(DEFECT)] * broken
    assert list(runs.handle(batch, WOKE, 0.5)) == []
    assert list(runs.handle(other, Succeeded(ORIGINAL), 1.0)) == [Resolve(ORIGINAL)] * broken
    commit(runs)
    assert runs.stats().batches == 1, "the child begins at zero"


DEFECTS: dict[str, tuple[type, str, Event]] = {
    "the engine": (AttemptEngine, "_set_hedge_timer", WOKE),
    "an answer": (TopicState, "batch_stored", Succeeded(1)),
    "an error": (TopicState, "attempt_failed", Failed(ORIGINAL, Transient())),
    "a failed batch": (TopicState, "batch_failed", Failed(ORIGINAL, Permanent())),
    "a hedge without a token": (TopicState, "hedge_suppressed", WOKE),
}


@pytest.mark.parametrize("place", DEFECTS)
def test_a_defect_ends_the_batch(
    place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R8: even where the engine has decided, all that may be in flight is cancelled; it is told."""
    runs = make_runs(1)
    batch, _ = commit(runs)
    runs.handle(batch, WOKE, 1.0)
    owner, name, event = DEFECTS[place]
    monkeypatch.setattr(owner, name, refuse(DEFECT))
    *orders, report = runs.handle(batch, event, 2.0)
    assert orders == [Cancel(0), Cancel(1), Fail(DEFECT)]
    assert batch.run.decided
    assert runs.batches == {}
    assert list(runs.handle(batch, Succeeded(ORIGINAL), 2.1)) == []
    assert isinstance(report, Call)
    assert not caplog.records, "a handler is a user's code"
    with caplog.at_level(logging.ERROR):
        report.function()
    assert repr(event) in caplog.text
    assert "a defect" in caplog.text, "with its traceback"
    if owner is AttemptEngine:  # at the commit nothing was sent, and nothing is
        batch, begun = commit(runs)
        assert list(begun[:2]) == [Cancel(ORIGINAL), Fail(DEFECT)]
        assert not runs.is_wanted(batch, ORIGINAL, 0.0, is_logged=False)
        assert runs.batches == {}


def test_what_may_run_a_users_code_is_called_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording, and a line about a hedge, wait until the futures have their outcome."""
    runs: Runs[Batch] = Runs(HedgingSettings(hedge_delay=1.0))
    runs.durations = Durations()
    recorded = runs.durations.added
    earn(runs, 1)
    assert set(recorded) == {("topic", "original", "", 0.0)}
    recorded.clear()
    batch, _ = commit(runs, now=8.0)
    runs.handle(batch, WOKE, 9.0)
    assert runs.is_wanted(batch, 1, 9.25, is_logged=True)
    cancel, resolve, *calls = runs.handle(batch, Succeeded(1), 9.5)
    assert (cancel, resolve) == (Cancel(ORIGINAL), Resolve(1))
    assert recorded == [("topic", "hedge", "", 1.5)]
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(log, "write", lambda *_, extra: lines.append(extra))
    for order in calls:
        assert isinstance(order, Call)
        order.function()
    assert [(line["delay"], line["duration"]) for line in lines] == [(1.25, 0.25)]
    assert recorded == []
    kinds = {"Permanent": Permanent(), "UNAUTHENTICATED": Unauthenticated("expired")}
    for kind, error in kinds.items():
        other, _ = commit(runs, now=8.0)
        assert len(runs.handle(other, Failed(0, error), 8.25)) == 2
        assert recorded.pop() == ("topic", "failed", kind, 0.25)


def test_hands_carry_out_all_orders_in_their_order() -> None:
    """Each order is one call; that a hedge was suppressed asks for nothing."""
    hands, batch, failure, call = Mock(), core_batch(), Fail(DEFECT), Call(dict)
    orders: list[Order] = [WakeAt(2.0), Start(1, 3.0), Suppressed(), Resolve(1), Cancel(0)]
    carry_out([*orders, failure, call], batch, hands, ["id"])
    assert hands.method_calls == [
        expected.wake_at(batch, 2.0),
        expected.start(batch, 1, 3.0),
        expected.resolve(batch, ["id"], 1),
        expected.cancel(batch, 0),
        expected.fail(batch, failure),
        expected.call(call),
    ]
