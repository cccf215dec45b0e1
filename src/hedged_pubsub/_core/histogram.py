"""Latencies in bounded memory, and their percentiles within one percent.

The buckets grow geometrically, as in DDSketch: what falls into one is at most a known share away
from its middle. So a percentile has a bounded *relative* error, and two histograms add up bucket
by bucket without further loss. Buckets are kept from the lowest that has a sample to the highest:
a hundred bytes for one latency, 700 for those within a factor of five, 7 KB for any.
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
_NO_COUNTS: Final = array.array("Q")


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
    """Counts latencies in buckets that are two percent wide.

    Not thread-safe: whoever counts serialises the calls. Reading needs no lock.
    """

    __slots__ = ("_window",)

    def __init__(self) -> None:
        # The first bucket that has a count, and the counts from there on. One attribute, because
        # others read it at any time.
        self._window: tuple[int, array.array[int]] = (0, _NO_COUNTS)

    def record(self, seconds: float) -> None:
        """Count one latency."""
        self.count(bucket_of(seconds))

    def count(self, bucket: int) -> None:
        """Count one latency of a bucket."""
        first, counts = self._window
        place = bucket - first
        if not 0 <= place < len(counts):
            counts = self._widened(bucket, bucket)
            place = bucket - self._window[0]
        counts[place] += 1

    def add(self, other: LatencyHistogram) -> None:
        """Count what another histogram has counted as well."""
        first, more = other._window
        if more:
            counts = self._widened(first, first + len(more) - 1)
            start = first - self._window[0]
            part = slice(start, start + len(more))
            counts[part] = array.array("Q", map(operator.add, counts[part], more))

    def copy(self) -> LatencyHistogram:
        """Return a histogram that has counted the same."""
        copy = LatencyHistogram()
        first, counts = self._window
        copy._window = first, counts[:]
        return copy

    def _widened(self, low: int, high: int) -> array.array[int]:
        """Have counts from one bucket to another, at least, and return all of them."""
        first, counts = self._window
        if not counts:
            first = low
        before, after = max(0, first - low), max(0, high + 1 - first - len(counts))
        if before or after:
            counts = _zeros(before) + counts + _zeros(after)
            self._window = first - before, counts
        return counts

    def quantile(self, fraction: float) -> float | None:
        """Return the seconds that this share of the samples, 0 to 1, did not exceed, if any."""
        first, counts = self._window
        return _quantile(first, list(itertools.accumulate(counts)), fraction)

    def percentiles(self) -> LatencyPercentiles:
        """Return the usual percentiles."""
        first, counts = self._window
        if not counts:
            return NO_SAMPLES
        sums = list(itertools.accumulate(counts))
        p50, p95, p99, p999 = (_quantile(first, sums, part) for part in (0.5, 0.95, 0.99, 0.999))
        return LatencyPercentiles(count=sums[-1], p50=p50, p95=p95, p99=p99, p999=p999)


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that a latency in seconds falls into."""
    if seconds <= MIN_LATENCY:
        return 0
    if seconds >= MAX_LATENCY:
        return _LAST
    # Bucket 1 begins at the least latency.
    return int(log(seconds / MIN_LATENCY) * _PER_LOG) + 1


def _zeros(count: int) -> array.array[int]:
    return array.array("Q", bytes(8 * count))


def _quantile(first: int, sums: list[int], fraction: float) -> float | None:
    """Return the latency at the nearest rank; the counts were added up from bucket to bucket."""
    if not sums:
        return None
    samples = sums[-1]
    # In binary floating point the product may be a hair above the whole number that it is.
    rank = max(1, math.ceil(fraction * samples - 1e-9 * samples))
    bucket = first + bisect.bisect_left(sums, rank)
    if bucket == 0:
        return MIN_LATENCY
    # The middle in relative terms: as far from the lower edge as from the upper one.
    middle = MIN_LATENCY * math.exp(bucket * _LOG_GROWTH) * (1 - RELATIVE_ERROR)
    return min(middle, MAX_LATENCY)
