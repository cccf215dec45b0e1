"""What the benchmark computes: ratios, batch sizes, and the best that is possible."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.cli.bench.best import best_possible
from hedged_pubsub.cli.bench.setup import Setup, this_setup
from hedged_pubsub.cli.bench.spread import Spread, median, ratios, spread
from hedged_pubsub.cli.bench.tails import HEDGING, cases
from hedged_pubsub.cli.bench.throughput import batch_settings, fits, window
from hedged_pubsub.testing import FaultScript, Fixed, Pareto, Stall, Status


def test_ratios_are_taken_pair_by_pair() -> None:
    """A machine that slows down halfway changes both of a pair, and no ratio."""
    hedged, official = [50.0, 10.0, 5.0], [10.0, 2.0, 1.0]
    assert ratios(hedged, official, float) == Spread(low=5.0, median=5.0, high=5.0)
    assert median(hedged, float) == 10.0


def test_pairs_must_match() -> None:
    """A measurement without its partner is a defect, not a ratio."""
    with pytest.raises(ValueError, match="argument 2 is longer"):
        ratios([1.0], [1.0, 2.0], float)
    with pytest.raises(ValueError, match="at least one"):
        spread([])


def test_a_batch_holds_what_is_asked_for() -> None:
    """Both clients count the message that makes a batch full, but do not put it in."""
    assert [batch_settings(batch).max_messages for batch in (1, 2, 10, 1000)] == [1, 3, 11, 1001]


def test_only_what_the_service_takes_is_measured() -> None:
    """A request has at most 10 MB."""
    assert fits(1000, 100)
    assert fits(100, 10_000)
    assert not fits(1000, 10_000)


def test_the_window_is_bounded_and_never_too_small() -> None:
    """2,000 messages are in flight at most, but for twenty batches at least."""
    assert [window(batch) for batch in (1, 10, 100, 1000)] == [2000, 200, 20, 20]


def test_without_faults_nothing_beats_the_latency() -> None:
    """A server that answers in time gets one request a message."""
    best = best_possible(FaultScript(latency=Fixed(0.005)), publishes=10, rate=100, hedge_delay=0.1)
    assert best.requests == 10
    assert best.latencies == pytest.approx([0.005] * 10)


def test_a_stall_is_overtaken_by_the_first_hedge_that_is_not_stalled() -> None:
    """Call 1 and its first hedge, call 4, stall; the second hedge, call 5, answers."""
    script = FaultScript(latency=Fixed(0.01), faults=[Stall(9.0, calls=(1, 4))])
    best = best_possible(script, publishes=3, rate=100, hedge_delay=0.1)
    assert best.requests == 5
    assert best.latencies == pytest.approx([0.21, 0.01, 0.01])


def test_a_hedge_does_not_replace_an_original_that_comes_first() -> None:
    """The best is the earliest of all answers."""
    script = FaultScript(latency=Fixed(0.5), faults=[Stall(0.15, calls=(1,))])
    best = best_possible(script, publishes=1, rate=1, hedge_delay=0.1)
    assert best.requests == 2
    assert best.latencies == pytest.approx([0.15])


def test_a_window_of_stalls_is_left_with_the_next_hedge() -> None:
    """Nothing helps within the window; the first look after it does."""
    script = FaultScript(latency=Fixed(0.01), faults=[Stall(60.0, between=(0.0, 0.45))])
    best = best_possible(script, publishes=1, rate=1, hedge_delay=0.1)
    assert best.latencies == pytest.approx([0.51])
    assert best.requests == 6


@given(st.integers(0, 2**32), st.floats(0.05, 1.0))
def test_hedging_never_makes_a_message_later_than_its_own_latency(seed: int, delay: float) -> None:
    """With no hedge, or with one that is sent too late for any, each takes its own draw."""
    script = FaultScript(latency=Pareto(minimum=0.005, alpha=1.2), seed=seed)
    alone = best_possible(script, publishes=50, rate=1e6, hedge_delay=math.inf)
    hedged = best_possible(script, publishes=50, rate=1e6, hedge_delay=delay)
    assert alone.requests == 50
    assert all(
        with_hedges <= without + 1e-9
        for with_hedges, without in zip(hedged.latencies, alone.latencies, strict=True)
    )


def test_other_faults_than_stalls_have_no_best() -> None:
    """An error is for the retry policy, which the yardstick does not have."""
    with pytest.raises(ValueError, match="no other faults than Stall"):
        best_possible(
            FaultScript(faults=[Status("INTERNAL")]), publishes=1, rate=1, hedge_delay=0.1
        )


@pytest.mark.parametrize("duration", [2.0, 20.0])
def test_every_case_has_a_best_within_reach(duration: float) -> None:
    """In each case hedging helps: the slowest message is faster than without."""
    for case in cases(1, duration=duration):
        best = best_possible(
            case.script, publishes=400, rate=400 / duration, hedge_delay=HEDGING.initial_hedge_delay
        )
        plain = best_possible(case.script, publishes=400, rate=400 / duration, hedge_delay=math.inf)
        assert max(best.latencies) < max(plain.latencies)
        assert best.requests > 400


def test_the_setup_names_machine_and_versions() -> None:
    """Numbers without these are worth nothing."""
    words = this_setup().in_words()
    for part in ("grpcio ", "google-cloud-pubsub ", "hedged-pubsub ", "Python", "core"):
        assert part in words


def test_a_busy_machine_is_named_one() -> None:
    """Whoever reads the numbers learns that others were at work."""
    quiet = Setup(date="2026-01-01", machine="a machine", versions="versions", load=0.1)
    busy = Setup(date="2026-01-01", machine="a machine", versions="versions", load=2.0)
    assert "busy" not in quiet.in_words()
    assert "load average 2.0" in busy.in_words()
