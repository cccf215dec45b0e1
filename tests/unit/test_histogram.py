"""Latencies in buckets: what is recorded comes back within one percent."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.histogram import (
    MAX_LATENCY,
    MIN_LATENCY,
    NO_SAMPLES,
    RELATIVE_ERROR,
    LatencyHistogram,
)

latencies = st.floats(MIN_LATENCY, MAX_LATENCY)


def histogram(*samples: float) -> LatencyHistogram:
    """Return a histogram of some samples."""
    made = LatencyHistogram()
    for seconds in samples:
        made.record(seconds)
    return made


@given(latencies)
def test_a_latency_comes_back_within_one_percent(seconds: float) -> None:
    """The error is relative: as small for a millisecond as for an hour."""
    value = histogram(seconds).quantile(0.5)
    assert value == pytest.approx(seconds, rel=RELATIVE_ERROR * (1 + 1e-9))


@given(st.lists(latencies, min_size=1), st.sampled_from([0.0, 0.5, 0.95, 0.99, 0.999, 1.0]))
def test_a_quantile_is_the_sample_of_the_nearest_rank(
    samples: list[float], fraction: float
) -> None:
    """Buckets do not change which sample a quantile is, only its last digits."""
    rank = max(1, math.ceil(round(fraction * len(samples), 6)))
    expected = sorted(samples)[rank - 1]
    value = histogram(*samples).quantile(fraction)
    assert value == pytest.approx(expected, rel=RELATIVE_ERROR * (1 + 1e-9))


@given(st.lists(latencies), st.lists(latencies))
def test_histograms_add_up(some: list[float], more: list[float]) -> None:
    """Two that were added are one that has counted all, and the second one is unchanged."""
    total, second = histogram(*some), histogram(*more)
    total.add(second)
    assert total.buckets == histogram(*some, *more).buckets
    assert second.buckets == histogram(*more).buckets


def test_a_copy_is_independent() -> None:
    """What is recorded later is not in it."""
    original = histogram(0.1)
    copy = original.copy()
    original.record(0.1)
    assert copy.percentiles().count == 1
    assert original.percentiles().count == 2


def test_percentiles() -> None:
    """Of a thousand: the 500th, the 950th, the 990th and the 999th."""
    percentiles = histogram(*(number / 1000 for number in range(1, 1001))).percentiles()
    assert percentiles.count == 1000
    values = [percentiles.p50, percentiles.p95, percentiles.p99, percentiles.p999]
    assert values == pytest.approx([0.5, 0.95, 0.99, 0.999], rel=RELATIVE_ERROR)


def test_without_samples_there_are_no_percentiles() -> None:
    """None, rather than a zero that looks like a very good latency."""
    assert LatencyHistogram().percentiles() == NO_SAMPLES
    assert LatencyHistogram().quantile(0.5) is None


@pytest.mark.parametrize("seconds", [-1.0, 0.0, MIN_LATENCY / 2])
def test_less_than_the_least_counts_as_the_least(seconds: float) -> None:
    """A clock of low resolution says zero."""
    assert histogram(seconds).quantile(1) == MIN_LATENCY


@pytest.mark.parametrize("seconds", [MAX_LATENCY, 1e9, math.inf])
def test_more_than_the_most_counts_as_the_most(seconds: float) -> None:
    """However long it took, it is counted."""
    assert histogram(seconds).quantile(1) == pytest.approx(MAX_LATENCY, rel=RELATIVE_ERROR)


def test_the_memory_is_fixed() -> None:
    """Seven kilobytes, after any number of any samples."""
    full = histogram(*(MIN_LATENCY * 1.003**step for step in range(6000)))
    assert full.percentiles().count == 6000
    assert sys.getsizeof(full.buckets) == sys.getsizeof(LatencyHistogram().buckets) < 8000
