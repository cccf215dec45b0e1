"""What ``hedged-pubsub plan`` predicts, which setting it recommends and why, what it warns of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub.cli.measures import nearest_rank
from hedged_pubsub.cli.plan.recommendation import (
    REFILL_RATIOS,
    Plan,
    choose_delays,
    make_plan,
    predict_all,
)
from hedged_pubsub.cli.plan.simulation import Prediction, Trace, predict
from tests.unit.replay import Batch, replay

pytestmark = pytest.mark.filterwarnings("ignore:refill_ratio .* must exceed")

# --- The replay, beside one that leaves nothing out.

# Some healthy, some slower than one delay or many, and one so slow that a hedge would time out.
LATENCY = st.one_of(
    st.floats(0.001, 0.09), st.floats(0.001, 3.0), st.sampled_from([0.0, 0.1, 0.2, 12.0, 700.0])
)
DELAY = st.one_of(
    st.sampled_from([0.1, 0.2, 1.0]),
    st.floats(0.1, 2),
    st.builds(HedgeDelay.percentile, st.sampled_from([0.6, 0.9, 0.95]), initial=st.floats(0.1, 1)),
)


def compared(trace: Trace, hedging: HedgingSettings) -> tuple[Prediction, list[Batch]]:
    """Predict, and check latencies and hedges against a replay with an engine for every batch."""
    prediction = predict(trace, hedging)
    batches = replay(
        trace.latencies,
        hedging,
        hedge_latency=trace.hedge_latency,
        commits=[number / trace.rate for number in range(len(trace))],
    )
    expected = sorted(batch.latency for batch in batches)
    assert list(prediction.latencies) == pytest.approx(expected, abs=1e-9)
    assert prediction.extra_requests == sum(batch.hedges for batch in batches) / len(trace)
    return prediction, batches


_TIGHT = HedgingSettings(1.0, max_tokens=1, refill_ratio=0.1)


@settings(max_examples=100, deadline=None)
@given(
    latencies=st.lists(LATENCY, min_size=1, max_size=60),
    rate=st.sampled_from([1.0, 10.0, 33.0, 1000.0]),
    hedging=st.builds(
        HedgingSettings,
        hedge_delay=DELAY,
        max_tokens=st.integers(1, 4),
        refill_ratio=st.sampled_from([0.001, 0.05, 0.1, 0.2]),
    ),
    seed=st.integers(0, 3),
)
# One that takes no time is sent when the timer of another one is due.
@example(latencies=[2.0, *[0.06] * 8, 2.0, 0.0], rate=1.0, hedging=_TIGHT, seed=0)
def test_leaving_out_fast_batches_changes_nothing(
    latencies: list[float], rate: float, hedging: HedgingSettings, seed: int
) -> None:
    """Every latency and every hedge is that of a replay in which each batch has an engine."""
    compared(Trace(latencies, rate=rate, seed=seed), hedging)


@pytest.mark.parametrize(
    "delay", [0.1, HedgeDelay.percentile(0.95), HedgeDelay.percentile(0.99)], ids=str
)
def test_a_long_trace_too(delay: float | HedgeDelay) -> None:
    """The same over thousands of batches, with a bucket that is often empty."""
    draw = random.Random(3)
    latencies = [
        draw.uniform(0.3, 3) if draw.random() < 0.06 else draw.lognormvariate(-3, 0.6)
        for _ in range(5_000)
    ]
    trace = Trace(latencies, rate=200, seed=1)
    hedging = HedgingSettings(hedge_delay=delay, max_tokens=10, refill_ratio=0.02)
    prediction, batches = compared(trace, hedging)
    assert prediction.suppressed > 0
    slower = sum(latency > batch.delay for latency, batch in zip(latencies, batches, strict=True))
    assert prediction.slower == slower / len(trace)


def test_hedges_take_any_of_the_recorded_latencies() -> None:
    """Over all requests each latency is drawn once, hedges of a request differ; seeds repeat it."""
    latencies = [float(number) for number in range(1000)]

    def draws(seed: int, hedge: int) -> list[float]:
        trace = Trace(latencies, rate=100, seed=seed)
        return [trace.hedge_latency(number, hedge) for number in range(1000)]

    first = draws(1, 1)
    assert sorted(first) == latencies
    assert first == draws(1, 1)
    assert first not in (latencies, draws(2, 1))
    assert all(a != b for a, b in zip(first, draws(1, 2), strict=True))


# --- The recommendation.


def stalls(count: int, share: float, *, stall: float = 2.0, body: float = 0.005) -> list[float]:
    """Draw latencies of a service where some requests stall."""
    draw = random.Random(5)
    return [
        stall if draw.random() < share else body * draw.lognormvariate(0, 0.4) for _ in range(count)
    ]


def plan(
    latencies: Sequence[float],
    *,
    delays: Sequence[float | HedgeDelay] | None = None,
    ratios: Sequence[float] = REFILL_RATIOS,
    budget: float | None = 0.02,
    in_order: bool = True,
) -> Plan:
    """Make a plan for latencies."""
    trace = Trace(latencies, rate=100, seed=1)
    delays = choose_delays(trace) if delays is None else delays
    how: dict[str, Any] = {"delays": delays, "refill_ratios": ratios, "max_tokens": 50}
    predictions = predict_all(trace, **how, tick=lambda: None)
    return make_plan(trace, predictions, budget=budget, in_order=in_order)


def test_the_shortest_delay_where_a_tail_stands_apart() -> None:
    """With 1 % at 2 s and a fast body, 0.1 s and a ratio that leaves room are best."""
    found = plan(stalls(20_000, 0.01))
    assert found.recommended is not None
    assert found.recommended.settings == HedgingSettings(hedge_delay=0.1, refill_ratio=0.02)
    assert nearest_rank(found.recommended.latencies, 9_990) == pytest.approx(0.11, rel=0.05)
    assert found.recommended.extra_requests == pytest.approx(0.01, rel=0.15)
    for words in ("hedge_delay=0.1, refill_ratio=0.02", "2000 ms without"):
        assert words in found.reason
    assert found.warnings == ()


def test_the_budget_decides_between_a_short_tail_and_few_requests() -> None:
    """Where a shorter delay costs more, the longest tail that the budget allows is taken."""
    draw = random.Random(5)
    latencies = [draw.paretovariate(1.2) * 0.01 for _ in range(20_000)]
    generous, tight = (plan(latencies, budget=budget).recommended for budget in (0.2, 0.005))
    assert generous is not None
    assert tight is not None
    assert generous.settings.initial_hedge_delay == 0.1
    assert tight.settings.initial_hedge_delay > 0.3
    assert tight.extra_requests <= 0.005 < generous.extra_requests


DRAW = random.Random(5)


def some(
    share: float, seed: int, *, length: int = 1, slow: tuple[float, float] = (2.0, 2.0)
) -> list[float]:
    """Draw latencies with a share of slow ones, so many of them at a time."""
    draw = random.Random(seed)
    latencies: list[float] = []
    while len(latencies) < 10_000:
        is_slow = draw.random() < share / length
        for _ in range(length if is_slow else 1):
            body = 0.013 * draw.lognormvariate(0, 0.5)
            latencies.append(draw.uniform(*slow) if is_slow else body)
    return latencies


def heavy(share: float, seed: int) -> list[float]:
    """Draw latencies with a tail of Pareto's."""
    draw = random.Random(seed)
    return [min(60.0, 0.01 * draw.paretovariate(share)) for _ in range(10_000)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "draws",
    [
        partial(some, 0.002),
        partial(some, 0.03),
        partial(some, 0.01, length=50, slow=(1.0, 3.0)),
        partial(heavy, 1.5),
    ],
    ids=["rare", "near the budget", "bursts", "Pareto"],
)
def test_the_recommendation_holds_on_another_day(draws: Callable[..., list[float]]) -> None:
    """On a fresh trace of the kind its p99.9 is in the range, and no worse than by default."""
    found = plan(draws(seed=1), budget=None)
    assert found.recommended is not None
    assert found.p99_9_range is not None
    fresh = Trace(draws(seed=2), rate=100, seed=3)
    p99_9, default = (
        nearest_rank(predict(fresh, one).latencies, 9_990)
        for one in (found.recommended.settings, HedgingSettings())
    )
    assert p99_9 <= 1.05 * default
    low, high = found.p99_9_range
    assert low <= p99_9 <= high


@pytest.mark.parametrize(
    ("latencies", "how", "words"),
    [
        # A bucket that lasts for a short trace only, however well it does there.
        (
            stalls(1_000, 0.04),
            {"delays": [0.1], "ratios": [0.01], "budget": 0.2},
            "refill ratio exceeds",
        ),
        # The reason names the cheapest setting where none is within the budget.
        (stalls(5_000, 0.05), {"delays": [0.1, 0.5], "budget": 0.001}, "hedge_delay="),
        # Nothing is slower than the shortest delay.
        ([0.02] * 4_000, {}, "longer than 0.1 s"),
        # Hedges of a service that is slow as a whole are as slow.
        ([0.4] * 2_000, {"delays": [0.1, 0.2], "budget": 1}, "worse day"),
        ([20.0] * 100, {}, "slow as a whole"),
        # There is no delay that tells a tail from the rest; or at its p95, it gains nothing.
        ([DRAW.uniform(0.40, 0.41) for _ in range(4_000)], {}, "differ so little"),
        ([DRAW.uniform(0.3, 0.5) for _ in range(4_000)], {"budget": 0.06}, "cannot help: within"),
    ],
    ids=["ratio", "small budget", "no tail", "same", "slow", "narrow", "shared tail"],
)
def test_nothing_is_recommended_where_hedging_cannot_help(
    latencies: list[float], how: dict[str, Any], words: str
) -> None:
    """The reason says why."""
    found = plan(latencies, **how)
    assert found.recommended is None
    assert words in found.reason


IN_A_BURST = [0.01] * 10_000 + [3.0] * 100 + [0.01] * 10_000


@pytest.mark.parametrize(
    ("latencies", "in_order", "words", "warned"),
    [
        # It has no tail to cut off.
        ([0.4] * 2_000, True, "100 %", True),
        # A p99.9 of fewer than ten requests is luck.
        (stalls(500, 0.01), True, "the slowest one of 500", True),
        (stalls(9_000, 0.01), True, "the 9 slowest of 9,000", True),
        # Hedges of the replay do not know that the service is slow just then.
        (IN_A_BURST, True, "bursts", True),
        (IN_A_BURST, False, "bursts", False),
        (DRAW.sample(IN_A_BURST, len(IN_A_BURST)), True, "bursts", False),
    ],
    ids=["slow", "one", "nine", "burst", "order unknown", "scattered"],
)
def test_what_makes_a_prediction_doubtful_is_warned_of(
    latencies: list[float], in_order: bool, words: str, warned: bool
) -> None:
    """Slowness as a whole, few samples, and bursts where the order is known."""
    found = plan(latencies, delays=[0.1, 0.2], in_order=in_order)
    assert any(words in one for one in found.warnings) == warned


def test_delays_suit_the_latencies() -> None:
    """From bound to bound, with the percentiles; none that too many exceed, or nobody."""
    trace = Trace([0.01 * number for number in range(1, 101)], rate=1, seed=1)
    assert choose_delays(trace) == (0.9, 0.95, 0.99)
    trace = Trace(stalls(1_000, 0.02, stall=30.0), rate=1, seed=1)
    assert choose_delays(trace) == (0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)


def test_ratios_that_suppress_nothing_are_replayed_once() -> None:
    """More tokens change nothing then; what comes out is what a replay of each would give."""
    latencies = stalls(10_000, 0.03)
    trace = Trace(latencies, rate=100, seed=1)
    predictions = plan(latencies, delays=[0.1, HedgeDelay.percentile(0.95)]).predictions
    assert len(predictions) == 7 > len({id(one.latencies) for one in predictions})
    for one in predictions:
        again = predict(trace, one.settings)
        assert (again.extra_requests, again.suppressed) == (one.extra_requests, one.suppressed)
        assert nearest_rank(again.latencies, 9_990) == nearest_rank(one.latencies, 9_990)
