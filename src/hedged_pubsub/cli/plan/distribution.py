"""Latencies out of a distribution that Cloud Monitoring exports: buckets and their counts.

The format is that of ``projects.timeSeries.list``, as the API answers it in JSON:
https://cloud.google.com/monitoring/api/ref_v3/rest/v3/TypedValue#Distribution
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

from hedged_pubsub.cli.plan.samples import InputError, Reading, Samples

_PUBLISH_LATENCIES: Final = "pubsub.googleapis.com/topic/send_request_latencies"
# The metric's own unit, which an export need not name.
_PUBLISH_LATENCIES_UNIT: Final = "us"
_UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

# More tell nothing more about the percentiles that are shown.
_MAX_SAMPLES: Final = 1_000_000


def read_time_series(series: Any, reading: Reading) -> Samples:
    """Read the distributions of all points of all series of successful requests as one.

    Requests are spread evenly between the bounds of their bucket; those beyond the last bound take
    that bound, or the largest value seen. Raise InputError if ``series`` cannot be read so.
    """
    counts: Counter[tuple[float, float]] = Counter()
    beyond = 0
    try:
        for one in series:
            if one["metric"].get("labels", {}).get("response_code", "success") != "success":
                continue
            scale = _UNITS[_unit(one, reading.unit)]
            for point in one["points"]:
                value = point["value"]["distributionValue"]
                for low, high, count in _buckets(value):
                    beyond += count * (low == high)
                    counts[scale * low, scale * high] += count
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            "the time series are not distributions as Cloud Monitoring exports them: "
            f"{type(error).__name__} at {error}"
        ) from error
    total = counts.total()
    if not total:
        raise InputError("the time series hold no successful request")
    latencies = _spread(sorted(counts.items()), total)
    random.Random(reading.seed).shuffle(latencies)  # noqa: S311 - no secret
    notes = [
        "A distribution has lost the order of the requests, so slow ones that came together are"
        " spread over the whole of it; and it is what the service measured, without the network."
    ]
    if beyond:
        notes.append(
            f"{100 * beyond / total:.2g} % of the requests are beyond the last bucket: they took"
            " longer than is assumed here."
        )
    return Samples(
        latencies=latencies,
        source=f"{total:,} requests of a distribution",
        in_order=False,
        notes=tuple(notes),
    )


def _unit(series: dict[str, Any], given: str | None) -> str:
    unit = given or series.get("unit")
    if unit is None and series["metric"]["type"] == _PUBLISH_LATENCIES:
        unit = _PUBLISH_LATENCIES_UNIT
    if unit not in _UNITS:
        raise InputError(
            f"the time series of {series['metric']['type']!r} have the unit {unit!r}: give it with"
            " --unit s or --unit ms"
        )
    return unit


def _buckets(distribution: dict[str, Any]) -> Iterator[tuple[float, float, int]]:
    """Yield lower bound, upper bound and count of each bucket that is not empty."""
    counts = [int(count) for count in distribution.get("bucketCounts", ())]
    if int(distribution.get("count", 0)) != sum(counts):
        raise InputError(
            f"a distribution of {distribution.get('count')} requests has {sum(counts)} in its"
            " buckets: export it with its buckets, not aligned to a percentile"
        )
    if not counts:
        return
    bounds = _bounds(distribution["bucketOptions"])
    largest = float(distribution.get("range", {}).get("max", bounds[-1]))
    if len(counts) > len(bounds) + 1 or min(counts) < 0:  # empty ones at the end may be left out
        raise ValueError(f"bucket counts {counts[:3]}")
    lows = [0.0, *bounds]
    highs = [*bounds, max(largest, bounds[-1])]
    for low, high, count in zip(lows, highs, counts, strict=False):
        if count:
            yield max(low, 0.0), max(high, 0.0), count


def _bounds(options: dict[str, Any]) -> list[float]:
    """Return the bounds between buckets: one fewer than there are buckets."""
    if "explicitBuckets" in options:
        bounds = [float(bound) for bound in options["explicitBuckets"]["bounds"]]
    elif buckets := options.get("exponentialBuckets"):
        scale, growth = float(buckets["scale"]), float(buckets["growthFactor"])
        bounds = [scale * growth**i for i in range(int(buckets["numFiniteBuckets"]) + 1)]
    else:
        buckets = options["linearBuckets"]
        offset, width = float(buckets.get("offset", 0)), float(buckets["width"])
        bounds = [offset + width * i for i in range(int(buckets["numFiniteBuckets"]) + 1)]
    if not all(map(math.isfinite, bounds)) or bounds != sorted(bounds):
        raise ValueError(f"bounds {bounds[:3]}")
    return bounds


def _spread(counts: list[tuple[tuple[float, float], int]], total: int) -> list[float]:
    """Return latencies at evenly spaced ranks; each request's own, unless there are too many."""
    size = min(total, _MAX_SAMPLES)
    ends = list(accumulate(count for _, count in counts))
    latencies = []
    bucket = 0
    for number in range(size):
        rank = (number + 0.5) * total / size
        while ends[bucket] < rank:
            bucket += 1
        (low, high), count = counts[bucket]
        latencies.append(high - (high - low) * (ends[bucket] - rank) / count)
    return latencies
