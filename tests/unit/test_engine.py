"""The attempt engine: what the scenarios cannot say."""

from __future__ import annotations

import math

import pytest

from hedged_pubsub._core import engine as engine_module
from hedged_pubsub._core.engine import (
    MAX_HEDGE_TIMEOUT,
    TRANSITIONS,
    AttemptEngine,
    IllegalEventError,
)
from hedged_pubsub._core.events import (
    ORIGINAL,
    Abandoned,
    Cancel,
    Committed,
    Event,
    Fail,
    Failed,
    Resend,
    Resolve,
    Start,
    Succeeded,
    Woke,
)
from hedged_pubsub._core.hedge_budget import AFTER_LATENESS, HedgeBudget
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.states import State
from hedged_pubsub._core.waiting import Waiting

from .story import SCENARIOS, Transient, play


def new_engine(tokens: int = 5, total_timeout: float = 600.0) -> AttemptEngine:
    """Make an engine whose topic has so many tokens of ten."""
    budget = HedgeBudget(HedgingSettings(max_tokens=10, initial_tokens=tokens))
    return AttemptEngine(
        hedge_delay=1.0, budget=budget, waiting=Waiting(), total_timeout=total_timeout
    )


def engine_in_flight(tokens: int = 5, total_timeout: float = 600.0) -> AttemptEngine:
    """Make an engine whose original went out at 0.0."""
    engine = new_engine(tokens, total_timeout)
    engine.handle(Committed(), 0.0)
    return engine


@pytest.mark.parametrize("at", [3.0, 3.5])
def test_a_timer_past_the_deadline_ends_hedging_and_keeps_the_token(at: float) -> None:
    """R3: one that comes so late that no time is left sends nothing, and no other follows."""
    engine = engine_in_flight(tokens=3, total_timeout=3.0)
    assert engine.handle(Woke(), at) == []
    assert engine.next_wakeup is None
    assert engine._budget.bucket.tokens == 3.0


@pytest.mark.parametrize(
    ("total_timeout", "timeout"),
    [
        (math.inf, 10.0),
        (11.5, 10.0),
        (11.0, 10.0),
        (10.5, 9.5),
        (math.nextafter(1.0, 2.0), 2.0**-52),
        (1.0, None),
        (0.5, None),
    ],
)
def test_a_hedge_may_take_ten_seconds_or_what_is_left(
    total_timeout: float, timeout: float | None
) -> None:
    """R3: however little; where nothing is left when the timer would be due, there is none."""
    engine = engine_in_flight(total_timeout=total_timeout)
    assert engine.next_wakeup == (None if timeout is None else 1.0)
    hedges = [] if timeout is None else [Start(1, timeout=timeout)]
    assert engine.handle(Woke(), 1.0) == hedges


@pytest.mark.parametrize(
    ("backoff", "retries"), [(0.0, True), (2.5, True), (math.nextafter(2.5, 3), False)]
)
def test_a_resend_may_start_at_the_deadline_and_not_after(backoff: float, retries: bool) -> None:
    """R6: as the official client has it, which compares what the wait would end with.

    A wait of no time is over at once.
    """
    engine = engine_in_flight(total_timeout=3.0)
    error = Transient()
    commands = engine.handle(Failed(ORIGINAL, error, transient=True, backoff=backoff), 0.5)
    if retries:
        assert commands == []
        assert engine.next_wakeup == min(0.5 + backoff, 1.0)
        assert engine.handle(Woke(), 0.5 + backoff) == [Start(ORIGINAL)]
    else:
        assert commands == [Fail(error, retry_timed_out=True)]


def test_timers_that_are_due_at_once_run_in_their_order() -> None:
    """R2 and R6: the process slept over a hedge timer and a retry; each is dealt with, once.

    The hedge timer is then due one delay after it ran: what was slept over is not made up for.
    """
    engine = engine_in_flight()
    engine.handle(Failed(ORIGINAL, Transient(), transient=True, backoff=0.5), 0.1)
    assert engine.handle(Woke(), 1.0) == [Start(ORIGINAL), Start(1, timeout=MAX_HEDGE_TIMEOUT)]
    assert engine.next_wakeup == 2.0
    engine = engine_in_flight()
    engine.handle(Failed(ORIGINAL, Transient(), transient=True, backoff=0.5), 0.1)
    assert engine.handle(Woke(), 5.0) == [Start(ORIGINAL)], "R13"
    assert engine.next_wakeup == 5.0 + AFTER_LATENESS


def test_a_decided_batch_is_told_nothing() -> None:
    """R4 and R7: what a loser reports after the outcome changes nothing, the bucket included."""
    engine = engine_in_flight()
    engine.handle(Woke(), 1.0)
    assert engine.handle(Succeeded(ORIGINAL), 1.5) == [Cancel(1), Resolve(ORIGINAL)]
    failed = Failed(1, Transient(), transient=True, backoff=0.1)
    for late in (Succeeded(1), failed, Woke(), Abandoned(ValueError())):
        assert engine.handle(late, 1.6) == []
        assert engine.next_wakeup is None
        assert engine._budget.bucket.tokens == 4.1


def test_abandoning_ends_a_batch_in_every_state() -> None:
    """R8: a batch can be given up from every state, with the error that is told."""
    defect = RuntimeError("defect")
    histories: dict[State, tuple[list[Event], list[int]]] = {
        State.NEW: ([], []),
        State.ORIGINAL_IN_FLIGHT: ([Committed(), Woke()], [0, 1]),
        State.BACKING_OFF: ([Committed(), Failed(0, defect, transient=True, backoff=0.5)], []),
        State.HEDGES_ONLY: ([Committed(), Woke(), Failed(0, defect, transient=True)], [1]),
    }
    for state, (history, in_flight) in histories.items():
        engine = new_engine()
        for now, event in enumerate(history):
            engine.handle(event, now)
        assert engine.state is state
        assert engine.handle(Abandoned(defect), 2.0) == [*map(Cancel, in_flight), Fail(defect)]
        assert engine.decided
        assert engine.next_wakeup is None


def test_proof_lets_an_original_go() -> None:
    """R16: another batch was stored; nothing is left of the backoff."""
    engine, other = engine_in_flight(), engine_in_flight()
    other._waiting = engine._waiting
    engine.handle(Failed(ORIGINAL, Transient(), transient=True, backoff=25.0), 0.1)
    assert other.handle(Succeeded(ORIGINAL), 0.2) == [Resolve(ORIGINAL), Resend(engine)]
    assert engine.state is State.ORIGINAL_IN_FLIGHT
    assert engine.next_wakeup == 1.0


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (Committed(), "Committed"),
        (Succeeded(1), "attempt 1"),
        (Succeeded(-1), "attempt -1"),
        (Failed(7, Transient()), "attempt 7"),
    ],
    ids=repr,
)
def test_an_illegal_event_changes_nothing_and_says_so(event: Event, named: str) -> None:
    """A driver's defect is named, and the batch can go on."""
    engine = engine_in_flight()
    with pytest.raises(IllegalEventError, match=f"{named}.*original in flight"):
        engine.handle(event, 0.5)
    assert engine.in_flight == (ORIGINAL,)
    assert engine.next_wakeup == 1.0
    assert engine.handle(Succeeded(ORIGINAL), 0.6) == [Resolve(ORIGINAL)]


def test_a_batch_that_is_not_committed_has_no_attempt_to_end() -> None:
    """Nothing can be answered before the original was sent."""
    engine = new_engine()
    assert (engine.next_wakeup, engine.winner, engine.original_latency) == (None, None, None)
    assert engine.in_flight == engine.losers == ()
    with pytest.raises(IllegalEventError, match="new"):
        engine.handle(Succeeded(ORIGINAL), 0.0)
    assert engine.handle(Woke(), 0.0) == []
    assert engine.state is State.NEW


def test_the_scenarios_use_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of the table is dead: the scenarios and the abandonments take each of them."""
    taken: set[object] = set()

    class Spy(dict[object, object]):
        def get(self, key: object, default: object = None) -> object:
            taken.add(key)
            return super().get(key, default)

    monkeypatch.setattr(engine_module, "TRANSITIONS", Spy(TRANSITIONS))
    for scenario in SCENARIOS:
        play(scenario)
    test_abandoning_ends_a_batch_in_every_state()
    test_proof_lets_an_original_go()
    assert taken >= set(TRANSITIONS)
