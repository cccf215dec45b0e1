"""Latencies in buckets: what is recorded comes back within one percent."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub._core.histogram import (
    MAX_LATENCY,
    MIN_LATENCY,
    NO_SAMPLES,
    RELATIVE_ERROR,
    LatencyHistogram,
    bucket_of,
)

latencies = st.floats(MIN_LATENCY, MAX_LATENCY)
GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
LAST = bucket_of(math.inf)


def histogram(*samples: float) -> LatencyHistogram:
    """Return a histogram of some samples."""
    made = LatencyHistogram()
    for seconds in samples:
        made.record(seconds)
    return made


@given(st.lists(latencies, min_size=1), st.sampled_from([0.0, 0.5, 0.95, 0.99, 0.999, 1.0]))
def test_a_quantile_is_the_sample_of_the_nearest_rank(
    samples: list[float], fraction: float
) -> None:
    """Within one percent, as small for a millisecond as for an hour: only digits are lost."""
    rank = max(1, math.ceil(round(fraction * len(samples), 6)))
    expected = sorted(samples)[rank - 1]
    value = histogram(*samples).quantile(fraction)
    assert value == pytest.approx(expected, rel=RELATIVE_ERROR * (1 + 1e-9))


@given(st.integers(1, LAST - 1), st.floats(1e-6, 1 - 1e-6))
def test_the_edges_of_a_bucket(bucket: int, part: float) -> None:
    """Bucket 1 begins at the least latency, and each ends where the next one begins."""
    lower = MIN_LATENCY * GROWTH ** (bucket - 1)
    assert bucket_of(min(lower * GROWTH**part, MAX_LATENCY * 0.99999)) == bucket
    assert bucket_of(lower * (1 - 1e-9)) == bucket - 1


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        *((seconds, 0) for seconds in (-1.0, 0.0, MIN_LATENCY / 2, MIN_LATENCY)),
        (math.nextafter(MIN_LATENCY, 1), 1),
        *((seconds, LAST) for seconds in (MAX_LATENCY, 1e9, math.inf)),
    ],
)
def test_the_ends_of_the_range(seconds: float, bucket: int) -> None:
    """A clock of low resolution says zero; whatever takes more than an hour counts as an hour."""
    assert (MIN_LATENCY, MAX_LATENCY, RELATIVE_ERROR) == (0.0001, 3600, 0.01)
    counted = histogram(seconds)
    assert bucket_of(seconds) == bucket
    if bucket == 0:
        assert counted.quantile(1) == MIN_LATENCY
    elif bucket == LAST:
        assert counted.quantile(1) == pytest.approx(MAX_LATENCY, rel=RELATIVE_ERROR)
        assert (counted.quantile(1) or 0) <= MAX_LATENCY


@given(st.lists(latencies), st.lists(latencies))
def test_histograms_add_up(some: list[float], more: list[float]) -> None:
    """Two that were added are one that has counted all, and the second one is unchanged."""
    total, second = histogram(*some), histogram(*more)
    total.add(second)
    assert total._window == histogram(*some, *more)._window
    assert second._window == histogram(*more)._window


def test_a_copy_is_independent() -> None:
    """What is recorded later is not in it, nor in another new one."""
    original = histogram(0.1)
    copy = original.copy()
    original.record(0.1)
    assert copy.percentiles().count == 1
    assert original.percentiles().count == 2
    assert LatencyHistogram().percentiles().count == 0


def test_percentiles() -> None:
    """Of a thousand: the 500th, the 950th, the 990th and the 999th."""
    percentiles = histogram(*(number / 1000 for number in range(1, 1001))).percentiles()
    assert percentiles.count == 1000
    values = [percentiles.p50, percentiles.p95, percentiles.p99, percentiles.p999]
    assert values == pytest.approx([0.5, 0.95, 0.99, 0.999], rel=RELATIVE_ERROR)


@pytest.mark.parametrize("samples", [100, 10_000_000])
def test_a_rank_is_not_rounded_up_past_a_whole_number(samples: int) -> None:
    """In binary floating point 0.07 times either of these is a hair more than it is."""
    counted = histogram(0.1, 0.2)
    counts = counted._window[1]
    counts[0], counts[-1] = samples * 7 // 100, samples * 93 // 100
    assert counted.quantile(0.07) == histogram(0.1).quantile(1)
    assert counted.quantile(0.0700002) == histogram(0.2).quantile(1)


def test_without_samples_there_are_no_percentiles() -> None:
    """None, rather than a zero that looks like a very good latency."""
    assert LatencyHistogram().percentiles() == NO_SAMPLES
    assert (NO_SAMPLES.count, NO_SAMPLES.p50, NO_SAMPLES.p999) == (0, None, None)
    assert LatencyHistogram().quantile(0.5) is None


def test_a_histogram_takes_what_it_holds() -> None:
    """A hundred bytes for one latency, 7 KB at most, whatever was counted in whatever order."""
    spread = [MIN_LATENCY * 1.003**step for step in range(6000)]
    for samples, most in ([0.05], 100), ([0.05, 0.25, 0.1], 800), (spread, 7100):
        for ordered in (samples, samples[::-1]):
            counted = histogram(*ordered)
            assert counted.percentiles().count == len(samples)
            assert sys.getsizeof(counted._window[1]) <= most
