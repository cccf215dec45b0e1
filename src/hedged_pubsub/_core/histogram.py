"""Latencies in fixed memory, and their percentiles within one percent.

The buckets grow geometrically, as in DDSketch: what falls into one is at most a known share away
from its middle. So a percentile has a bounded *relative* error, and two histograms add up bucket
by bucket without further loss.
"""

from __future__ import annotations

import array
import bisect
import itertools
import math
import operator
from dataclasses import dataclass
from math import log
from typing import Final

RELATIVE_ERROR: Final = 0.01
"""How far a percentile is off at most, between the bounds."""

MIN_LATENCY: Final = 0.0001
"""Seconds; less than this counts as this. No publish request is answered so soon."""

MAX_LATENCY: Final = 3600.0
"""Seconds; more than this counts as this. The default retry timeout is six times shorter."""

_LOG_GROWTH: Final = log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_PER_LOG: Final = 1 / _LOG_GROWTH
_LAST: Final = math.ceil(log(MAX_LATENCY / MIN_LATENCY) * _PER_LOG)
_EMPTY: Final = array.array("Q", bytes(8 * (_LAST + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPercentiles:
    """Percentiles in seconds, within one percent; ``None`` as long as there are no samples.

    Attributes:
        count: Samples.
        p50: Half of the samples took no longer.
        p95: The 95th percentile.
        p99: The 99th percentile.
        p999: The 99.9th percentile.
    """

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None


NO_SAMPLES: Final = LatencyPercentiles()


class LatencyHistogram:
    """Counts latencies in ``buckets`` that are two percent wide; 7 KB, whatever it has counted.

    Not thread-safe: whoever records serialises the calls. Reading needs no lock.
    """

    __slots__ = ("buckets",)

    def __init__(self) -> None:
        self.buckets = _EMPTY[:]

    def record(self, seconds: float) -> None:
        """Count one latency."""
        self.buckets[bucket_of(seconds)] += 1

    def add(self, other: LatencyHistogram) -> None:
        """Count what another histogram has counted as well."""
        self.buckets = array.array("Q", map(operator.add, self.buckets, other.buckets))

    def copy(self) -> LatencyHistogram:
        """Return a histogram that has counted the same."""
        copy = LatencyHistogram()
        copy.buckets = self.buckets[:]
        return copy

    def quantile(self, fraction: float) -> float | None:
        """Return the seconds that this share of the samples, 0 to 1, did not exceed, if any."""
        return _quantile(list(itertools.accumulate(self.buckets)), fraction)

    def percentiles(self) -> LatencyPercentiles:
        """Return the usual percentiles."""
        cumulative = list(itertools.accumulate(self.buckets))
        p50, p95, p99, p999 = (_quantile(cumulative, part) for part in (0.5, 0.95, 0.99, 0.999))
        return LatencyPercentiles(count=cumulative[-1], p50=p50, p95=p95, p99=p99, p999=p999)


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that a latency in seconds falls into."""
    if seconds <= MIN_LATENCY:
        return 0
    if seconds >= MAX_LATENCY:
        return _LAST
    # Bucket 1 begins at the least latency.
    return int(log(seconds / MIN_LATENCY) * _PER_LOG) + 1


def _quantile(cumulative: list[int], fraction: float) -> float | None:
    """Return the latency at the nearest rank; the counts were added up from bucket to bucket."""
    samples = cumulative[-1]
    if not samples:
        return None
    # In binary floating point the product may be a hair above the whole number that it is.
    rank = max(1, math.ceil(fraction * samples - 1e-9 * samples))
    bucket = bisect.bisect_left(cumulative, rank)
    if bucket == 0:
        return MIN_LATENCY
    # The middle in relative terms: as far from the lower edge as from the upper one.
    middle = MIN_LATENCY * math.exp(bucket * _LOG_GROWTH) * (1 - RELATIVE_ERROR)
    return min(middle, MAX_LATENCY)
