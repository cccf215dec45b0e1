"""Which hedges that are due are sent (R3, R13, R14, R15), and the settings that bear on it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.events import (
    ORIGINAL,
    Event,
    Failed,
    HeldBack,
    Order,
    Start,
    Succeeded,
    Suppressed,
    WakeAt,
    Woke,
)
from hedged_pubsub._core.hedge_budget import (
    AFTER_LATENESS,
    MAX_LATENESS,
    MAX_PUSHBACK,
)
from hedged_pubsub._core.runs import WOKE, Runs

from .replay import core_batch, run
from .story import Transient

HEDGE, LAST_HEDGE = Start(1, timeout=10.0), Start(2, timeout=10.0)
IN_VAIN = Woke(shares_wait=True)


def make_runs(**settings: Any) -> Runs[Batch]:
    """Make runs whose topics start with ten tokens."""
    return Runs(HedgingSettings(**{"initial_tokens": 10, **settings}))


def commit(runs: Runs[Batch], now: float = 0.0) -> Batch:
    """Commit a batch."""
    batch = core_batch()
    runs.commit(batch, now)
    return batch


def wake(runs: Runs[Batch], batch: Batch, now: float, woke: Woke = WOKE) -> Sequence[Order]:
    """Wake a batch; return the orders but that for the timer."""
    orders = runs.handle(batch, woke, now)
    return [order for order in orders if not isinstance(order, WakeAt)]


def tokens(runs: Runs[Batch]) -> float:
    """Return the tokens left."""
    return runs.stats().tokens


def test_a_topic_starts_with_tokens() -> None:
    """``initial_tokens``: the very first batch can be hedged; each topic has its own."""
    runs = make_runs(initial_tokens=1)
    batch = commit(runs)
    assert wake(runs, batch, 1.0) == [HEDGE]
    assert wake(runs, batch, 2.0) == [Suppressed()]
    assert runs.stats().hedges_due == 2


def test_max_hedges_of_a_batch() -> None:
    """Hedging ends with the last one allowed: no token, no timer, nothing suppressed."""
    runs = make_runs(max_hedges=2)
    batch = commit(runs)
    assert [wake(runs, batch, now) for now in (1.0, 2.0, 3.0)] == [[HEDGE], [LAST_HEDGE], []]
    assert batch.run.next_wakeup is None
    assert (tokens(runs), runs.stats().hedges_due) == (8.0, 2)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("initial_tokens", -1, ValueError),
        ("initial_tokens", 51, ValueError),
        ("initial_tokens", 1.0, TypeError),
        ("initial_tokens", True, TypeError),
        ("max_hedges", 0, ValueError),
        ("max_hedges", 1.5, TypeError),
        ("max_hedges", True, TypeError),
        ("observe_only", 1, TypeError),
        ("hedge_endpoint", "", ValueError),
        ("hedge_endpoint", "https://pubsub.googleapis.com", ValueError),
        ("hedge_endpoint", "host:port", ValueError),
        ("hedge_endpoint", b"host", TypeError),
    ],
)
def test_settings_that_are_refused(name: str, value: object, error: type[Exception]) -> None:
    """With an error that names the argument and the value."""
    with pytest.raises(
        error, match=rf"{name}.*{value!r}" if value != 51 else r"51.*max_tokens.*50"
    ):
        HedgingSettings(**{name: value})  # type: ignore[arg-type]


def test_settings_that_exclude_each_other() -> None:
    """An endpoint for hedges needs a connection of theirs."""
    with pytest.raises(ValueError, match=r"hedge_endpoint.*second_connection"):
        HedgingSettings(hedge_endpoint="pubsub.googleapis.com", second_connection=False)
    for endpoint in ("pubsub.googleapis.com", "localhost:8085", "[::1]:443"):
        assert HedgingSettings(hedge_endpoint=endpoint).hedge_endpoint == endpoint


# --- R13: our own lateness.


def test_a_late_timer_is_due_once_more() -> None:
    """No token; what was answered meanwhile is taken in; then it goes on as ever."""
    runs = make_runs()
    answered, stuck = commit(runs), commit(runs)
    for batch in (answered, stuck):
        assert runs.handle(batch, WOKE, 6.0) == [WakeAt(6.0 + AFTER_LATENESS)]
    runs.handle(answered, Succeeded(ORIGINAL), 6.01)
    assert wake(runs, stuck, 6.06) == [HEDGE]
    assert stuck.run.next_wakeup == 7.06
    assert runs.stats().hedges_due == 1


def test_a_timer_that_is_a_little_late_is_in_time() -> None:
    """A busy interpreter is."""
    runs = make_runs()
    assert wake(runs, commit(runs), 1.0 + MAX_LATENESS / 2) == [HEDGE]


@pytest.mark.filterwarnings("ignore:refill_ratio .* must exceed")
def test_an_answer_that_waited_for_us_is_no_sample() -> None:
    """A pause of ours does not become the hedge delay, whichever comes first after it."""
    runs = make_runs(hedge_delay=HedgeDelay.percentile(0.9))
    batches = [commit(runs) for _ in range(45)]
    for batch in batches[:15]:
        runs.handle(batch, Succeeded(ORIGINAL), 12.0)
    for batch in batches[15:30]:
        runs.handle(batch, WOKE, 12.0)
    for batch in batches[15:]:
        runs.handle(batch, Succeeded(ORIGINAL), 12.01)
    assert runs.topics["topic"].hedge_delay == 1.0
    slow = [commit(runs, 12.0) for _ in range(4)]
    for batch in slow:
        wake(runs, batch, 13.15)
        wake(runs, batch, 13.21, IN_VAIN)
    for batch in slow[:2]:
        runs.handle(batch, Succeeded(ORIGINAL), 13.25)
    assert len(runs.topics["topic"]._measured_delay._ordered) == 0  # type: ignore[union-attr]
    for batch in slow[2:]:
        runs.handle(batch, Succeeded(ORIGINAL), 13.35)
    assert len(runs.topics["topic"]._measured_delay._ordered) == 2, "long after"  # type: ignore[union-attr]
    for _ in range(450):
        runs.handle(commit(runs, 14.02), Succeeded(ORIGINAL), 14.32)
    assert runs.topics["topic"].hedge_delay == pytest.approx(0.3)


def test_losers_of_a_pause_are_no_reason_to_warn() -> None:
    """Hedges that were under way when this process stopped lost to answers that waited for us."""
    runs = make_runs(initial_tokens=40)
    calls = []
    for _ in range(30):
        batch = commit(runs)
        wake(runs, batch, 1.0)
        assert runs.is_wanted(batch, 1, 1.0, is_logged=False)
        calls += [runs.handle(batch, Succeeded(ORIGINAL), 9.0)]
    assert [len(orders) for orders in calls] == [2] * 30, "cancel, resolve"


# --- R14: a wait that is shared.


def test_a_hedge_that_would_wait_with_the_original_is_not_sent() -> None:
    """No token, nothing suppressed; one more delay once the original has been sent."""
    runs = make_runs()
    batch = commit(runs)
    for second in (1.0, 2.0, 3.0):
        assert wake(runs, batch, second, IN_VAIN) == []
    assert wake(runs, batch, 4.0) == [], "it was sent a moment ago"
    assert (tokens(runs), runs.stats().hedges_due) == (10.0, 0)
    assert wake(runs, batch, 5.0) == [HEDGE]


def test_an_original_that_was_sent_again_does_not_remember() -> None:
    """The wait was that of the attempt before."""
    runs = make_runs()
    batch = commit(runs)
    wake(runs, batch, 1.0, IN_VAIN)
    runs.handle(batch, Failed(0, Transient(), transient=True, backoff=0.25), 1.25)
    assert wake(runs, batch, 1.5) == [Start(ORIGINAL)]
    assert wake(runs, batch, 2.0) == [HEDGE]


def test_a_probe_is_not_sent_in_vain_either() -> None:
    """Nothing in flight, nothing connected; and then nothing to give one more delay to."""
    runs = make_runs()
    batch = commit(runs)
    runs.handle(batch, Failed(0, Transient(), transient=True, backoff=25.0), 0.5)
    assert wake(runs, batch, 1.0, IN_VAIN) == []
    assert wake(runs, batch, 2.0) == [HEDGE]


# --- R15: pushback.


@pytest.mark.parametrize("attempt", [ORIGINAL, 1])
@pytest.mark.parametrize(("asked", "until"), [(2.5, 3.55), (1000.0, 1.05 + MAX_PUSHBACK)])
def test_retry_info_suspends_hedging(attempt: int, asked: float, until: float) -> None:
    """In the answer to any attempt of the topic: no token and nothing due until then."""
    runs = make_runs()
    refused, other = commit(runs), commit(runs, 0.1)
    assert wake(runs, refused, 1.0) == [HEDGE]
    runs.handle(refused, Failed(attempt, Transient(), True, 99.0, retry_after=asked), 1.05)
    due = [wake(runs, other, now + 0.1) for now in range(1, math.ceil(until - 0.1) + 1)]
    assert due[-1] == [HEDGE]
    assert not any(due[:-1])
    assert runs.stats("topic").hedges_due == 2


def test_resource_exhausted_suspends_hedging_for_one_delay() -> None:
    """Unless RetryInfo has asked for more."""
    runs = make_runs()
    first, second, third = (commit(runs) for _ in range(3))
    runs.handle(first, Failed(0, Transient(), True, 99.0, exhausted=True), 0.75)
    assert wake(runs, second, 1.0) == []
    assert wake(runs, second, 2.0) == [HEDGE]
    runs.handle(third, Failed(0, Transient(), True, 99.0, retry_after=5.0), 2.0)
    runs.handle(second, Failed(1, Transient(), exhausted=True), 2.1)
    for now in (3.0, 4.0, 5.0, 6.0):
        assert wake(runs, second, now) == []
    assert wake(runs, second, 7.0) == [LAST_HEDGE]


# --- Observing.


def test_observing_counts_and_sends_nothing() -> None:
    """It takes the token that a hedge would cost; one due hedge a batch, sent or suppressed."""
    runs = make_runs(initial_tokens=1, observe_only=True)
    batch, other, probed = (commit(runs) for _ in range(3))
    assert wake(runs, batch, 1.0) == [HeldBack()]
    assert batch.run.next_wakeup is None
    assert wake(runs, other, 1.0) == [Suppressed()]
    assert other.run.next_wakeup is None
    runs.handle(probed, Failed(0, Transient(), True, 99.0), 0.5)
    stats = runs.stats()
    assert (stats.hedges_due, stats.hedges_sent, stats.hedges_suppressed) == (2, 0, 1)
    assert stats.tokens == 0
    runs.handle(batch, Succeeded(ORIGINAL), 3.0)
    assert tokens(runs) == 0.1


@pytest.mark.parametrize("slow_share", [0.005, 0.05, 0.2])
def test_observing_counts_what_hedging_would(slow_share: float) -> None:
    """Of the same requests, within a tenth, whether the bucket lasts or runs dry."""

    def due(*, observe_only: bool) -> int:
        draw = random.Random(7)
        runs = make_runs(hedge_delay=0.1, observe_only=observe_only)

        def answer(_: int, start: Start) -> tuple[float, Event]:
            slow = draw.random() < (slow_share if start.attempt == ORIGINAL else 0.005)
            return (0.18 if slow else 0.01), Succeeded(start.attempt)

        commits = ((number / 50, core_batch()) for number in range(20_000))
        run(runs, commits, answer, lambda *_: None)
        return runs.stats().hedges_due

    assert due(observe_only=True) == pytest.approx(due(observe_only=False), rel=0.1)
