"""Which setting ``hedged-pubsub plan`` recommends, why, and what it warns of."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub.cli.plan import recommendation
from hedged_pubsub.cli.plan.recommendation import (
    REFILL_RATIOS,
    Plan,
    choose_delays,
    make_plan,
    predict_all,
)
from hedged_pubsub.cli.plan.simulation import Prediction, Trace, predict


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
    budget: float = 0.02,
    in_order: bool = True,
) -> Plan:
    """Make a plan for latencies."""
    trace = Trace(latencies, rate=100, seed=1)
    predictions = predict_all(
        trace,
        delays=choose_delays(trace) if delays is None else delays,
        refill_ratios=ratios,
        max_tokens=50,
        tick=lambda: None,
    )
    return make_plan(trace, predictions, budget=budget, in_order=in_order)


def test_the_shortest_delay_where_a_tail_stands_apart() -> None:
    """With 1 % at 2 s and a fast body, 0.1 s and a ratio that leaves room are best."""
    found = plan(stalls(20_000, 0.01))
    assert found.recommended is not None
    settings = found.recommended.settings
    assert settings == HedgingSettings(hedge_delay=0.1, refill_ratio=0.02)
    assert found.recommended.latencies.percentile(9_990) == pytest.approx(0.11, rel=0.05)
    assert found.recommended.extra_requests == pytest.approx(0.01, rel=0.15)
    for words in ("hedge_delay=0.1, refill_ratio=0.02", "2000 ms without", "exceeds"):
        assert words in found.reason
    assert found.warnings == ()


def test_the_budget_decides_between_a_short_tail_and_few_requests() -> None:
    """Where a shorter delay costs more, the longest tail that the budget allows is taken."""
    draw = random.Random(5)
    latencies = [draw.paretovariate(1.2) * 0.01 for _ in range(20_000)]
    generous, tight = plan(latencies, budget=0.2), plan(latencies, budget=0.005)
    assert generous.recommended is not None
    assert tight.recommended is not None
    assert generous.recommended.settings.initial_hedge_delay == 0.1
    assert tight.recommended.settings.initial_hedge_delay > 0.3
    assert tight.recommended.extra_requests <= 0.005 < generous.recommended.extra_requests


def test_the_ratio_must_exceed_the_share_of_slow_requests() -> None:
    """A bucket that lasts for a short trace only is not recommended, however well it does there."""
    found = plan(stalls(1_000, 0.04), delays=[0.1], ratios=[0.01, 0.02], budget=0.2)
    assert found.predictions[0].suppressed == 0
    assert found.recommended is None
    assert "No refill ratio exceeds" in found.reason


@pytest.mark.parametrize("budget", [0.0, 0.001])
def test_no_setting_within_the_budget(budget: float) -> None:
    """The reason names the cheapest one."""
    found = plan(stalls(5_000, 0.05), delays=[0.1, 0.5], budget=budget)
    assert found.recommended is None
    assert "No setting keeps within" in found.reason
    assert "hedge_delay=" in found.reason


def test_without_a_tail_hedging_cannot_help() -> None:
    """Nothing is slower than the shortest delay."""
    found = plan([0.02] * 4_000)
    assert found.predictions == ()
    assert found.recommended is None
    assert "no request took longer than 0.1 s" in found.reason


def test_where_everything_takes_the_same_hedging_cannot_help() -> None:
    """Hedges of a service that is slow as a whole are as slow."""
    found = plan([0.4] * 2_000, delays=[0.1, 0.2], budget=1)
    assert found.recommended is None
    assert "No refill ratio exceeds" in found.reason
    assert any("100 % of the requests took longer than 0.1 s" in one for one in found.warnings)

    found = plan([20.0] * 100)
    assert found.predictions == ()
    assert "slow as a whole" in found.reason


def test_a_tail_that_hedges_share_is_not_cut() -> None:
    """A body of 0.3 to 0.5 s: a delay at its p95 gains nothing; of 0.40 to 0.41 s there is none."""
    draw = random.Random(5)
    found = plan([draw.uniform(0.40, 0.41) for _ in range(4_000)])
    assert found.recommended is None
    assert "differ so little" in found.reason
    found = plan([draw.uniform(0.3, 0.5) for _ in range(4_000)], budget=0.06)
    assert found.recommended is None
    assert "Hedging cannot help: within 6 % extra requests the p99.9 goes" in found.reason


@pytest.mark.parametrize(
    ("count", "words"), [(500, "the slowest one of 500"), (9_000, "the 9 slowest of 9,000")]
)
def test_few_samples_are_warned_of(count: int, words: str) -> None:
    """A p99.9 of fewer than ten requests is luck."""
    assert any(words in warning for warning in plan(stalls(count, 0.01)).warnings)


def test_bursts_are_warned_of_where_the_order_is_known() -> None:
    """Hedges of the replay do not know that the service is slow just then."""
    latencies = [0.01] * 10_000 + [3.0] * 100 + [0.01] * 10_000
    assert any("bursts" in warning for warning in plan(latencies).warnings)
    assert not any("bursts" in warning for warning in plan(latencies, in_order=False).warnings)
    random.Random(1).shuffle(latencies)
    assert not any("bursts" in warning for warning in plan(latencies).warnings)


def test_delays_suit_the_latencies() -> None:
    """From bound to bound, with the percentiles; none that too many exceed, or nobody."""
    trace = Trace([0.01 * number for number in range(1, 101)], rate=1, seed=1)
    assert choose_delays(trace) == (0.9, 0.95, 0.99)
    trace = Trace(stalls(1_000, 0.02, stall=30.0), rate=1, seed=1)
    assert choose_delays(trace) == (0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10)


def test_ratios_that_suppress_nothing_are_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tokens change nothing then; what comes out is what a replay of each would give."""
    replayed: list[HedgingSettings] = []

    def counting(trace: Trace, settings: HedgingSettings) -> Prediction:
        replayed.append(settings)
        return predict(trace, settings)

    monkeypatch.setattr(recommendation, "predict", counting)
    latencies = stalls(10_000, 0.03)
    trace = Trace(latencies, rate=100, seed=1)
    measured = HedgeDelay.percentile(0.95)
    predictions = plan(latencies, delays=[0.1, measured]).predictions
    assert len(predictions) == 10
    assert len(replayed) < 10
    for one in predictions:
        again = predict(trace, one.settings)
        assert (again.extra_requests, again.suppressed) == (one.extra_requests, one.suppressed)
        assert again.latencies.percentile(9_990) == one.latencies.percentile(9_990)
