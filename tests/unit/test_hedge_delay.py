"""The measured hedge delay: its percentile, and what it does with the engine and the bucket."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub.hedge_delay import MeasuredDelay
from hedged_pubsub.token_bucket import TokenBucket
from tests.unit.fakes import FakeBatch, virtual_driver
from tests.unit.replay import Batch, full_bucket, replay

P95 = HedgeDelay.percentile(0.95)
RATE = 20.0


def run(
    latencies: list[float],
    *,
    settings: HedgingSettings | None = None,
    commits: list[float] | None = None,
    bucket: TokenBucket | None = None,
    hedge_latency: Callable[[int, int], float] | None = None,
) -> list[Batch]:
    """Replay batches; a hedge takes what its batch's neighbour takes, unless said otherwise."""
    return replay(
        latencies,
        settings or HedgingSettings(hedge_delay=P95),
        hedge_latency=hedge_latency
        or (lambda number, hedge: latencies[(number + hedge) % len(latencies)]),
        commits=commits or [number / RATE for number in range(len(latencies))],
        bucket=bucket,
    )


def hedged_share(batches: list[Batch]) -> float:
    """Return the share of the batches of which a hedge was sent."""
    return sum(batch.hedges > 0 for batch in batches) / len(batches)


def lognormal(median: float, count: int, *, sigma: float = 0.3, seed: int = 1) -> list[float]:
    """Draw latencies of a service that is as it always is."""
    draw = random.Random(seed)
    return [draw.lognormvariate(math.log(median), sigma) for _ in range(count)]


# --- The value.


@pytest.mark.parametrize("initial", [0.1, 1, 10.0, timedelta(milliseconds=300)])
def test_the_bounds_are_inclusive_but_for_the_lower_percentile(initial: Any) -> None:
    """What is within the bounds is taken, and the initial delay reads back as seconds."""
    for fraction in (0.501, 0.95, 0.999):
        delay = HedgeDelay.percentile(fraction, initial=initial)
        assert delay.fraction == fraction
        expected = initial.total_seconds() if isinstance(initial, timedelta) else initial
        assert delay.initial == expected
        assert isinstance(delay.initial, float)


@pytest.mark.parametrize("fraction", [0.5, 0.9991, 1, 0, -0.95, 95, math.nan, math.inf])
def test_a_percentile_out_of_range(fraction: float) -> None:
    """It is a ValueError that names argument, value and bounds."""
    with pytest.raises(ValueError, match=r"fraction .* above 0\.5 and up to 0\.999") as caught:
        HedgeDelay.percentile(fraction)
    assert repr(fraction) in str(caught.value)


@pytest.mark.parametrize("initial", [0.09, 10.1, 0, -1, math.nan, timedelta(0)])
def test_an_initial_delay_out_of_range(initial: Any) -> None:
    """It is a ValueError that names argument, value and bounds."""
    with pytest.raises(ValueError, match=r"initial must be from 0\.1 to 10 seconds") as caught:
        HedgeDelay.percentile(0.95, initial=initial)
    assert repr(initial) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"fraction": "0.95"}, "fraction"),
        ({"fraction": True}, "fraction"),
        ({"fraction": None}, "fraction"),
        ({"fraction": 0.95, "initial": "1"}, "initial"),
        ({"fraction": 0.95, "initial": True}, "initial"),
        ({"fraction": 0.95, "initial": None}, "initial"),
    ],
)
def test_a_wrong_type(arguments: dict[str, Any], name: str) -> None:
    """It is a TypeError that names the argument."""
    with pytest.raises(TypeError, match=f"{name} must be a number"):
        HedgeDelay.percentile(**arguments)


def test_settings_take_it_and_stay_a_value() -> None:
    """It reads back as given, compares, hashes and survives a replacement of another field."""
    settings = HedgingSettings(hedge_delay=HedgeDelay.percentile(0.95, initial=0.3))
    assert settings.hedge_delay == HedgeDelay.percentile(0.95, initial=0.3)
    assert settings.initial_hedge_delay == 0.3
    assert settings != HedgingSettings(hedge_delay=0.3)
    assert hash(settings) == hash(dataclasses.replace(settings))
    assert dataclasses.replace(settings, max_tokens=7).hedge_delay == settings.hedge_delay
    assert HedgingSettings(hedge_delay=0.3).initial_hedge_delay == 0.3
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.hedge_delay.initial = 2.0  # type: ignore[misc]


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


@pytest.mark.parametrize(("fraction", "enough"), [(0.6, 20), (0.95, 20), (0.99, 99), (0.999, 999)])
def test_with_too_few_samples_the_initial_delay_stands(fraction: float, enough: int) -> None:
    """One sample less than enough changes nothing; the next one does."""
    measured = MeasuredDelay(HedgeDelay.percentile(fraction, initial=0.7))
    for _ in range(enough - 1):
        measured.record(0.4)
        assert measured.current == 0.7
    measured.record(0.4)
    assert measured.current == 0.4


@pytest.mark.parametrize(("sample", "delay"), [(0.0, 0.1), (0.02, 0.1), (10.5, 10), (600, 10)])
def test_it_stays_within_the_bounds_of_a_hedge_delay(sample: float, delay: float) -> None:
    """However fast or slow the service is."""
    measured = MeasuredDelay(P95)
    for _ in range(20):
        measured.record(sample)
    assert measured.current == delay


# --- With the engine and the bucket.


@pytest.mark.parametrize("seed", range(3))
def test_a_service_that_becomes_slow_is_followed(seed: int) -> None:
    """The median moves from 20 ms to 400 ms: 200 batches later, fewer than 6 % are hedged."""
    latencies = lognormal(0.02, 500, seed=seed) + lognormal(0.4, 2200, seed=seed + 100)
    batches = run(latencies)
    shift = 500
    assert batches[shift].delay == 0.1
    # It was too short at first: hedges went out until the bucket was empty.
    assert hedged_share(batches[shift : shift + 50]) > 0.25
    assert hedged_share(batches[shift + 200 :]) < 0.06
    assert 0.55 < batches[-1].delay < 0.85


def test_a_service_that_becomes_fast_again_is_followed() -> None:
    """Back from 400 ms to 20 ms: a window later the delay is short again."""
    batches = run(lognormal(0.4, 500) + lognormal(0.02, 300))
    assert batches[500].delay > 0.5
    assert batches[500 + 220].delay == 0.1


@pytest.mark.parametrize("tokens", ["full", "empty"])
def test_losers_do_not_ratchet_the_delay_down(tokens: str) -> None:
    """A steady service keeps its p95, though one in twenty originals is cancelled before its end.

    With a fast hedge each loser is cut off right above the delay: the worst there can be.
    """
    settings = HedgingSettings(hedge_delay=P95)
    latencies = lognormal(0.4, 5000, sigma=0.4)
    bucket = full_bucket(settings) if tokens == "full" else TokenBucket(50, 0.1)
    batches = run(latencies, bucket=bucket, hedge_latency=lambda _number, _hedge: 0.001)
    p95 = sorted(latencies)[4750]
    late = [batch.delay for batch in batches[-2000:]]
    assert sum(late) / len(late) == pytest.approx(p95, rel=0.08)
    assert 0.04 < hedged_share(batches[-2000:]) < 0.06


def test_a_burst_is_hedged_by_one_delay_and_within_the_bucket() -> None:
    """A thousand batches at once share the delay; no more hedges than tokens go out."""
    quiet = lognormal(0.2, 400)
    burst = [3.0] * 1000
    start = len(quiet) / RATE + 5
    batches = run(
        quiet + burst,
        commits=[number / RATE for number in range(len(quiet))] + [start] * len(burst),
        hedge_latency=lambda _number, _hedge: 3.0,
    )
    in_burst = batches[len(quiet) :]
    assert len({batch.delay for batch in in_burst}) == 1
    assert sum(batch.hedges for batch in in_burst) <= 50


def test_an_idle_period_changes_nothing() -> None:
    """After a night the delay is that of the evening, and goes on from there."""
    evening, morning = lognormal(0.3, 300), lognormal(0.3, 300, seed=2)
    commits = [number / RATE for number in range(300)]
    batches = run(evening + morning, commits=commits + [30_000 + time for time in commits])
    assert batches[300].delay == pytest.approx(batches[299].delay, rel=0.1)
    assert hedged_share(batches[300:]) < 0.08


def test_an_outage_draws_no_more_hedges_than_the_bucket() -> None:
    """Nothing is answered for a minute: 50 tokens, and a tenth of what succeeds, is all."""
    settings = HedgingSettings(hedge_delay=P95)
    before, during, after = lognormal(0.05, 400), [60.0] * 600, lognormal(0.05, 400)
    latencies = before + during + after

    def hedge_latency(number: int, _hedge: int) -> float:
        return 60.0 if 400 <= number < 1000 else 0.05

    batches = run(latencies, settings=settings, hedge_latency=hedge_latency)
    hedges = sum(batch.hedges for batch in batches)
    assert 50 <= hedges <= settings.max_tokens + settings.refill_ratio * len(batches)
    in_outage = sum(batch.hedges for batch in batches[400:1000] if batch.latency > 30)
    assert in_outage <= settings.max_tokens + settings.refill_ratio * len(batches)
    assert all(0.1 <= batch.delay <= 10 for batch in batches)


# --- In the driver.


def test_the_driver_measures_each_original_once() -> None:
    """Answers teach the delay of that topic alone; a loser counts with its time in flight."""
    settings = HedgingSettings(hedge_delay=HedgeDelay.percentile(0.95, initial=1.0))
    driver, time = virtual_driver(settings)
    for number in range(39):  # 3 tokens, and more than enough samples
        batch = FakeBatch()
        driver.submit(batch)
        time.advance(time.now + (0.6 if number in (0, 1) else 0.3))
        batch.calls[0].succeed()
    # Of 39 samples the percentile is the 38th.
    batch = FakeBatch()
    driver.submit(batch)
    time.advance(time.now + 0.599)
    assert len(batch.calls) == 1
    time.advance(time.now + 0.002)
    assert len(batch.calls) == 2
    assert batch.calls[1].attempt == 1

    # The hedge wins at 0.601 s. The 39th of 40 samples is 0.6 s; had the original counted twice,
    # by its cancellation too, the 40th of 41 would be 0.601 s.
    batch.calls[1].succeed()
    assert batch.calls[0].cancelled
    batch = FakeBatch()
    driver.submit(batch)
    time.advance(time.now + 0.6005)
    assert len(batch.calls) == 2

    other = FakeBatch()
    other.topic = "another topic"
    driver.submit(other)
    time.advance(time.now + 0.999)
    assert len(other.calls) == 1
