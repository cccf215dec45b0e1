"""The attempt engine: every scenario, and what the scenarios cannot say."""

from __future__ import annotations

import heapq
import itertools
import math

import pytest

from hedged_pubsub import engine as engine_module
from hedged_pubsub.engine import (
    MAX_HEDGE_TIMEOUT,
    TRANSITIONS,
    AttemptEngine,
    IllegalEventError,
    State,
)
from hedged_pubsub.events import (
    ORIGINAL,
    Abandoned,
    Cancel,
    Command,
    Committed,
    Event,
    Fail,
    Failed,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
    Woke,
)
from hedged_pubsub.token_bucket import TokenBucket

from .story import SCENARIOS, Scenario, Transient


def full_bucket(tokens: int = 5) -> TokenBucket:
    """Make a bucket of ten that holds ``tokens``."""
    bucket = TokenBucket(10, 0.1)
    for _ in range(tokens * 10):
        bucket.refill()
    return bucket


def tell(command: Command) -> str:
    """Put a command into the words of a story."""
    match command:
        case Start(attempt, None):
            return f"start {attempt}"
        case Start(attempt, timeout):
            return f"start {attempt} timeout {timeout:g}"
        case Cancel(attempt):
            return f"cancel {attempt}"
        case Suppressed():
            return "suppressed"
        case Resolve(attempt):
            return f"resolve {attempt}"
        case Fail(error, retry_timed_out):
            return f"fail {type(error).__name__}" + " retry timed out" * retry_timed_out


def replay(scenario: Scenario) -> tuple[tuple[str, ...], float]:
    """Play a scenario on a virtual clock; return the story and the tokens afterwards."""
    bucket = full_bucket(scenario.tokens)
    engine = AttemptEngine(
        hedge_delay=scenario.hedge_delay, bucket=bucket, total_timeout=scenario.total_timeout
    )
    replies = iter(scenario.replies)
    backoffs = iter(scenario.backoffs or ())
    order = itertools.count()
    answers: list[tuple[float, int, int, type[Exception] | None]] = []
    story: list[str] = []

    def handle(event: Event, now: float) -> None:
        for command in engine.handle(event, now):
            story.append(f"{now:.3f} {tell(command)}")
            if isinstance(command, Start):
                reply = next(replies, None)
                after = math.inf if reply is None else reply.after
                error = None if reply is None else reply.error
                heapq.heappush(answers, (now + after, next(order), command.attempt, error))

    handle(Committed(), 0.0)
    while not engine.decided:
        answer_at = answers[0][0] if answers else math.inf
        wake_at = math.inf if engine.next_wakeup is None else engine.next_wakeup
        if wake_at <= answer_at:
            handle(Woke(), wake_at)
            continue
        at, _, attempt, error = heapq.heappop(answers)
        if error is None:
            handle(Succeeded(attempt), at)
        else:
            is_transient = error is Transient
            backoff = next(backoffs, None) if is_transient and attempt == ORIGINAL else None
            handle(Failed(attempt, error(), transient=is_transient, backoff=backoff), at)
    return tuple(story), bucket.tokens


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario) -> None:
    """The engine tells the story of the scenario, to the token."""
    assert replay(scenario) == (scenario.story, scenario.tokens_after)


def engine_in_flight(tokens: int = 5, total_timeout: float = 600.0) -> AttemptEngine:
    """Make an engine whose original went out at 0.0."""
    engine = AttemptEngine(hedge_delay=1.0, bucket=full_bucket(tokens), total_timeout=total_timeout)
    engine.handle(Committed(), 0.0)
    return engine


def test_a_late_look_is_not_made_up_for() -> None:
    """R2: after a stall of the process the next look is one delay after the late one."""
    engine = engine_in_flight()
    assert engine.handle(Woke(), 5.5) == [Start(1, timeout=MAX_HEDGE_TIMEOUT)]
    assert engine.next_wakeup == 6.5


def test_an_early_wakeup_does_nothing() -> None:
    """R2: a wake-up before the look is due neither hedges nor moves the look."""
    engine = engine_in_flight()
    assert engine.handle(Woke(), 0.999) == []
    assert engine.next_wakeup == 1.0


def test_a_look_past_the_deadline_ends_hedging_and_keeps_the_token() -> None:
    """R3: a look that comes so late that no time is left sends nothing, and no other follows."""
    bucket = full_bucket(3)
    engine = AttemptEngine(hedge_delay=1.0, bucket=bucket, total_timeout=3.0)
    engine.handle(Committed(), 0.0)
    assert engine.handle(Woke(), 3.0) == []
    assert engine.next_wakeup is None
    assert bucket.tokens == 3.0


def test_a_hedge_timeout_is_never_below_zero() -> None:
    """R3: the last instant before the deadline gives a timeout that is small but positive."""
    engine = engine_in_flight(total_timeout=1.5)
    (start,) = engine.handle(Woke(), math.nextafter(1.5, 0))
    assert isinstance(start, Start)
    assert start.timeout is not None
    assert 0 < start.timeout < 1e-9


def test_a_suppressed_batch_is_rescued_once_others_succeed() -> None:
    """R3: a batch that found no token at one look is hedged at a later one."""
    bucket = TokenBucket(10, 0.1)
    engine = AttemptEngine(hedge_delay=1.0, bucket=bucket, total_timeout=600.0)
    engine.handle(Committed(), 0.0)
    assert engine.handle(Woke(), 1.0) == [Suppressed()]
    for _ in range(10):
        bucket.refill()
    assert engine.handle(Woke(), 2.0) == [Start(1, timeout=MAX_HEDGE_TIMEOUT)]


def test_the_refill_comes_before_the_outcome() -> None:
    """R4: when the driver hears of the outcome, the bucket has been refilled."""
    bucket = full_bucket(1)
    engine = AttemptEngine(hedge_delay=1.0, bucket=bucket, total_timeout=600.0)
    engine.handle(Committed(), 0.0)
    assert engine.handle(Succeeded(ORIGINAL), 0.1) == [Resolve(ORIGINAL)]
    assert bucket.tokens == 1.1


@pytest.mark.parametrize(
    "late",
    [
        Succeeded(1),
        Failed(1, Transient(), transient=True, backoff=0.1),
        Woke(),
        Abandoned(ValueError()),
    ],
    ids=repr,
)
def test_a_decided_batch_hears_nothing(late: Event) -> None:
    """R4 and R7: what a loser reports after the outcome changes nothing, the bucket included."""
    bucket = full_bucket(5)
    engine = AttemptEngine(hedge_delay=1.0, bucket=bucket, total_timeout=600.0)
    engine.handle(Committed(), 0.0)
    engine.handle(Woke(), 1.0)
    assert engine.handle(Succeeded(ORIGINAL), 1.5) == [Cancel(1), Resolve(ORIGINAL)]
    assert engine.handle(late, 1.6) == []
    assert engine.next_wakeup is None
    assert bucket.tokens == 4.1


def test_abandoning_ends_a_batch_in_every_state() -> None:
    """R8: a batch can be given up from every state, with the error that is told."""
    defect = RuntimeError("defect")
    new = AttemptEngine(hedge_delay=1.0, bucket=full_bucket(), total_timeout=600.0)
    in_flight = engine_in_flight()
    in_flight.handle(Woke(), 1.0)
    backing_off = engine_in_flight()
    backing_off.handle(Failed(0, Transient(), transient=True, backoff=0.5), 0.1)
    hedges_only = engine_in_flight()
    hedges_only.handle(Woke(), 1.0)
    hedges_only.handle(Failed(0, Transient(), transient=True), 1.1)

    assert new.handle(Abandoned(defect), 2.0) == [Fail(defect)]
    assert in_flight.handle(Abandoned(defect), 2.0) == [Cancel(0), Cancel(1), Fail(defect)]
    assert backing_off.handle(Abandoned(defect), 2.0) == [Fail(defect)]
    assert hedges_only.handle(Abandoned(defect), 2.0) == [Cancel(1), Fail(defect)]
    for engine in (new, in_flight, backing_off, hedges_only):
        assert engine.decided
        assert engine.next_wakeup is None


@pytest.mark.parametrize(
    "event",
    [Committed(), Succeeded(1), Succeeded(-1), Failed(7, Transient())],
    ids=repr,
)
def test_an_illegal_event_changes_nothing_and_says_so(event: Event) -> None:
    """A driver's defect is named, and the batch can go on."""
    engine = engine_in_flight()
    with pytest.raises(IllegalEventError, match="original in flight"):
        engine.handle(event, 0.5)
    assert engine.in_flight == (ORIGINAL,)
    assert engine.next_wakeup == 1.0
    assert engine.handle(Succeeded(ORIGINAL), 0.6) == [Resolve(ORIGINAL)]


def test_a_batch_that_is_not_committed_has_no_attempt_to_end() -> None:
    """Nothing can be answered before the original was sent."""
    engine = AttemptEngine(hedge_delay=1.0, bucket=full_bucket(), total_timeout=600.0)
    with pytest.raises(IllegalEventError, match="new"):
        engine.handle(Succeeded(ORIGINAL), 0.0)
    assert engine.handle(Woke(), 0.0) == []
    assert engine.state is State.NEW


def test_every_state_but_the_last_can_end() -> None:
    """The table leads from every state to the outcome, and nowhere from there."""
    sources = {state for state, _ in TRANSITIONS}
    assert sources == set(State) - {State.DECIDED}
    for state in sources:
        assert any(
            row.to is State.DECIDED for (source, _), row in TRANSITIONS.items() if source is state
        )


def test_the_scenarios_use_every_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row of the table is dead: the scenarios and the abandonments take each of them."""
    taken: set[object] = set()

    class Spy(dict[object, object]):
        def get(self, key: object, default: object = None) -> object:
            taken.add(key)
            return super().get(key, default)

    monkeypatch.setattr(engine_module, "TRANSITIONS", Spy(TRANSITIONS))
    for scenario in SCENARIOS:
        replay(scenario)
    test_abandoning_ends_a_batch_in_every_state()
    assert taken >= set(TRANSITIONS)
