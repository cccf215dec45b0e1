"""The replay of ``hedged-pubsub plan`` against one that leaves nothing out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub.cli.plan.simulation import Latencies, Trace, predict
from tests.unit.replay import Batch, replay

# Some healthy, some slower than one delay or many, and one so slow that a hedge would time out.
LATENCY = st.one_of(
    st.floats(0.001, 0.09),
    st.floats(0.001, 3.0),
    st.sampled_from([0.0, 0.1, 0.2, 12.0, 700.0]),
)
DELAY = st.one_of(
    st.sampled_from([0.1, 0.2, 1.0]),
    st.floats(0.1, 2),
    st.builds(HedgeDelay.percentile, st.sampled_from([0.6, 0.9, 0.95]), initial=st.floats(0.1, 1)),
)


def replay_fully(trace: Trace, hedging: HedgingSettings) -> list[Batch]:
    """Replay a trace with an engine and events for every batch."""
    return replay(
        trace.latencies,
        hedging,
        hedge_latency=trace.hedge_latency,
        commits=[number / trace.rate for number in range(len(trace))],
    )


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
def test_leaving_out_fast_batches_changes_nothing(
    latencies: list[float], rate: float, hedging: HedgingSettings, seed: int
) -> None:
    """Every latency and every hedge is that of a replay in which each batch has an engine."""
    trace = Trace(latencies, rate=rate, seed=seed)
    prediction = predict(trace, hedging)
    batches = replay_fully(trace, hedging)

    predicted = [prediction.latencies[rank] for rank in range(len(prediction.latencies))]
    assert predicted == pytest.approx(sorted(batch.latency for batch in batches), abs=1e-9)
    hedges = sum(batch.hedges for batch in batches)
    assert prediction.extra_requests == hedges / len(trace)


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
    prediction = predict(trace, hedging)
    batches = replay_fully(trace, hedging)
    predicted = [prediction.latencies[rank] for rank in range(len(prediction.latencies))]
    assert predicted == pytest.approx(sorted(batch.latency for batch in batches), abs=1e-9)
    assert prediction.extra_requests == sum(batch.hedges for batch in batches) / len(trace)
    assert prediction.suppressed > 0
    slower = sum(latency > batch.delay for latency, batch in zip(latencies, batches, strict=True))
    assert prediction.slower == slower / len(trace)


def test_extra_requests_stay_within_the_bucket() -> None:
    """Where everything is slow, a full bucket and a twentieth is all that is sent."""
    trace = Trace([5.0] * 1000, rate=100, seed=1)
    prediction = predict(trace, HedgingSettings(hedge_delay=0.1, max_tokens=10, refill_ratio=0.05))
    assert 0.01 <= prediction.extra_requests <= 0.01 + 0.05
    assert prediction.slower == 1


def test_a_seed_gives_the_same_prediction_and_another_one_another() -> None:
    """Hedges take random draws, which can be repeated."""
    latencies = [number / 100 for number in range(1, 300)]
    hedging = HedgingSettings(hedge_delay=0.1, refill_ratio=0.2)

    def percentiles(seed: int) -> list[float]:
        latencies_of = predict(Trace(latencies, rate=100, seed=seed), hedging).latencies
        return [latencies_of[rank] for rank in range(len(latencies_of))]

    assert percentiles(1) == percentiles(1)
    assert percentiles(1) != percentiles(2)


def test_a_hedge_takes_any_of_the_recorded_latencies() -> None:
    """Over all requests each latency is drawn once, and hedges of a request differ."""
    latencies = [float(number) for number in range(1000)]
    trace = Trace(latencies, rate=100, seed=1)
    first = [trace.hedge_latency(number, 1) for number in range(1000)]
    assert sorted(first) == latencies
    assert first != latencies
    assert all(trace.hedge_latency(number, 2) != first[number] for number in range(1000))


def test_percentiles_are_by_nearest_rank_across_both_parts() -> None:
    """Of ten latencies the p90 is the ninth, wherever the parts meet."""
    for count in range(11):
        ordered = list(range(1, 11))
        latencies = Latencies(ordered, count, ordered[count:])
        assert [latencies.percentile(parts) for parts in (1, 1_000, 1_001, 9_000, 10_000)] == [
            1,
            1,
            2,
            9,
            10,
        ]
