"""The measured hedge delay: its percentile, and what it does with the engine and the bucket."""

from __future__ import annotations

import bisect
import functools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub._core.hedge_delay import MeasuredDelay
from hedged_pubsub._core.token_bucket import TokenBucket
from tests.unit.replay import Batch, full_bucket, replay

P95 = HedgeDelay.percentile(0.95)

# --- The percentile.


@given(
    fraction=st.sampled_from([0.51, 0.75, 0.9, 0.95, 0.99, 0.999]),
    samples=st.lists(st.floats(0, 20), max_size=60),
    repeated=st.integers(1, 25),
)
def test_it_is_the_percentile_of_the_sorted_window(
    fraction: float, samples: list[float], repeated: int
) -> None:
    """Whatever was recorded, the delay is what sorting the last samples gives, within bounds."""
    measured = MeasuredDelay(HedgeDelay.percentile(fraction, initial=0.7))
    everything = samples * repeated
    for sample in everything:
        measured.record(sample)
    window = max(200, min(math.ceil(10 / (1 - fraction)), 1000))
    ordered = sorted(everything[-window:])
    count = len(ordered)
    if count < max(20, math.ceil(fraction / (1 - fraction))):
        assert measured.current == 0.7
    else:
        rank = math.ceil(fraction * (count + 1))
        assert measured.current == min(max(ordered[rank - 1], 0.1), 10)
        # Rounded up: no larger share of the window is above than was asked for.
        above = sum(sample > ordered[rank - 1] for sample in ordered)
        assert above <= (1 - fraction) * count


@pytest.mark.parametrize(
    ("fraction", "enough", "window"),
    [(0.6, 20, 200), (0.95, 20, 200), (0.98, 49, 500), (0.99, 99, 1000), (0.999, 999, 1000)],
)
def test_enough_samples_and_the_window(fraction: float, enough: int, window: int) -> None:
    """One sample less than enough leaves the initial delay; the window then forgets the oldest."""
    measured = MeasuredDelay(HedgeDelay.percentile(fraction, initial=0.7))
    for _ in range(enough - 1):
        measured.record(0.4)
        assert measured.current == 0.7
    for _ in range(window - enough + 1):
        measured.record(0.4)
        assert measured.current == 0.4
    for count in range(window):
        assert measured._recent.count(0.5) == count
        measured.record(0.5)
    assert measured._recent.count(0.5) == len(measured._ordered) == window


@given(st.lists(st.floats(0, 20), max_size=50), st.floats(0, 20), st.integers(1, 30))
def test_a_loser_counts_as_one_of_the_samples_above_its_bound(
    samples: list[float], bound: float, losers: int
) -> None:
    """Each of those above in turn; where there is none, as the time until it was cancelled."""
    measured = MeasuredDelay(P95)
    for sample in samples:
        measured.record(sample)
    for _ in range(losers):
        ordered = list(measured._ordered)
        above = ordered[bisect.bisect_right(ordered, bound) :] or [bound]
        measured.record(bound, lost=True)
        assert measured._recent[-1] in above
        assert measured._ordered == sorted(measured._recent)


def test_losers_are_spread_over_the_samples_above_their_bound() -> None:
    """Ten losers in a row stand for each of ten samples once, and fifty for each five times."""
    measured = MeasuredDelay(P95)
    for sample in (0.5, *range(1, 11)):
        measured.record(sample)
    samples = [measured._one_above(0.5) for _ in range(50)]
    assert sorted(samples[:10]) == list(range(1, 11))
    assert sorted(samples) == sorted(list(range(1, 11)) * 5)


# --- With the engine and the bucket.


run = functools.partial(replay, settings=HedgingSettings(hedge_delay=P95))


def hedged_share(batches: list[Batch]) -> float:
    """Return the share of the batches of which a hedge was sent."""
    return sum(batch.hedges > 0 for batch in batches) / len(batches)


def lognormal(median: float, count: int, *, sigma: float = 0.3, seed: int = 1) -> list[float]:
    """Draw latencies of a service that is as it always is."""
    draw = random.Random(seed)
    return [draw.lognormvariate(math.log(median), sigma) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_a_service_that_becomes_slow_is_followed(seed: int) -> None:
    """The median moves from 20 ms to 400 ms: 200 batches later, fewer than 6 % are hedged."""
    batches = run(lognormal(0.02, 500, seed=seed) + lognormal(0.4, 2200, seed=seed + 100))
    assert batches[500].delay == 0.1
    # It was too short at first: hedges went out until the bucket was empty.
    assert hedged_share(batches[500:550]) > 0.25
    assert hedged_share(batches[700:]) < 0.06
    assert 0.55 < batches[-1].delay < 0.85


@pytest.mark.parametrize("tokens", ["full", "empty"])
def test_losers_do_not_ratchet_the_delay_down(tokens: str) -> None:
    """A steady service keeps its p95, though one in twenty originals is cancelled before its end.

    With a fast hedge each loser is cut off right above the delay: the worst there can be.
    """
    latencies = lognormal(0.4, 5000, sigma=0.4)
    bucket = full_bucket(HedgingSettings()) if tokens == "full" else TokenBucket(50, 0.1)
    batches = run(latencies, bucket=bucket, hedge_latency=lambda _number, _hedge: 0.001)[-2000:]
    p95 = sorted(latencies)[4750]
    assert sum(batch.delay for batch in batches) / 2000 == pytest.approx(p95, rel=0.08)
    assert 0.04 < hedged_share(batches) < 0.06
