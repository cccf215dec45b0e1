"""Latencies out of histograms and percentiles, which have lost the single requests.

* Cloud Monitoring: ``projects.timeSeries.list`` in JSON,
  https://cloud.google.com/monitoring/api/ref_v3/rest/v3/TypedValue#Distribution
* Prometheus: the text that is scraped, or the JSON that the API answers to a query
* OTLP in JSON, as the collector writes it and as OpenTelemetry's SDK for Python prints it
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

from hedged_pubsub.cli.plan.samples import (
    SECONDS,
    UNITS,
    InputError,
    Reading,
    Samples,
    is_latency,
    listed,
    unit_of,
)

_PUBLISH_LATENCIES: Final = "pubsub.googleapis.com/topic/send_request_latencies"
_OWN: Final = re.compile(r"messaging[._]client[._]operation[._]duration")
_PROMETHEUS: Final = re.compile(r"([A-Za-z_:][\w:]*)\{([^}]*)\}\s+(\S+)")
_LABEL: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')

# More tell nothing more about the percentiles that are shown.
_MAX_SAMPLES: Final = 1_000_000
# As many as are made where only shares are known.
_FROM_SHARES: Final = 50_000

Buckets = dict[tuple[float, float], float]
"""How many requests took between two bounds, in seconds."""

# Two percentiles that differ so much, within a tenth of the share of slower requests, are of two
# kinds of requests: healthy ones and stalls.
_JUMP: Final = 10.0
_JUMP_WITHIN: Final = math.log(10) + 1e-6

# What a document can raise that is not as it should be.
MALFORMED: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def samples_of_buckets(buckets: Buckets, reading: Reading, what: str, note: str = "") -> Samples:
    """Spread requests evenly between the bounds of their bucket, in random order.

    Those beyond the last bound take that bound, or the largest value seen. Raise InputError if
    there is none.
    """
    counts = sorted((bounds, count) for bounds, count in buckets.items() if count > 0)
    total = sum(count for _, count in counts)
    if not total:
        raise InputError(f"the {what} hold no successful request")
    beyond = sum(count for (low, high), count in counts if low == high > 0)
    is_counted = all(float(count).is_integer() for _, count in counts)
    size = min(round(total), _MAX_SAMPLES) if is_counted else _FROM_SHARES
    ends = list(accumulate(count for _, count in counts))
    latencies, bucket = [], 0
    for number in range(size):
        rank = (number + 0.5) * total / size
        while ends[bucket] < rank and bucket < len(ends) - 1:
            bucket += 1
        (low, high), count = counts[bucket]
        latencies.append(high - (high - low) * (ends[bucket] - rank) / count)
    random.Random(reading.seed).shuffle(latencies)  # noqa: S311 - no secret
    notes = [
        "A distribution has lost the order of the requests, so slow ones that came together are"
        f" spread over the whole of it{note}."
    ]
    if beyond:
        notes.append(
            f"{100 * beyond / total:.2g} % of the requests are beyond the last bucket: they took"
            " longer than is assumed here."
        )
    source = f"{size:,} requests of a distribution"
    return Samples(latencies=latencies, source=source, in_order=False, notes=tuple(notes))


def samples_of_percentiles(percentiles: Mapping[float, float], reading: Reading) -> Samples:
    """Draw requests that have these percentiles, in seconds, by share; raise InputError if none do.

    Between two of them the logarithm of the latency rises with that of the share of slower ones,
    as in most tails, or jumps halfway, where they are far apart, as stalls do; beyond the last one
    it stays.
    """
    points = sorted(percentiles.items())
    if len(points) < 2:
        raise InputError("one percentile is not enough: give at least two, such as p50 and p99.9")
    for (low, fast), (high, slow) in pairwise(points):
        if slow < fast:
            raise InputError(
                f"p{100 * high:g} ({slow:g} s) is below p{100 * low:g} ({fast:g} s): percentiles"
                " rise"
            )
    least = 1e-6
    shares = [1 / (1 - min(share, 1 - least)) for share, _ in points]
    times = [max(seconds, least) for _, seconds in points]
    if shares[0] > 1:
        shares, times = [1.0, *shares], [times[0] / 2, *times]
    latencies, at = [], 0
    for number in range(_FROM_SHARES):
        share = _FROM_SHARES / (_FROM_SHARES - number - 0.5)
        while at < len(shares) - 2 and shares[at + 1] < share:
            at += 1
        whole = math.log(shares[at + 1] / shares[at])
        part = min(1.0, math.log(share / shares[at]) / whole) if whole else 1.0
        if whole < _JUMP_WITHIN and times[at + 1] > _JUMP * times[at]:
            part = float(part > 0.5)
        latencies.append(times[at] * (times[at + 1] / times[at]) ** part)
    random.Random(reading.seed).shuffle(latencies)  # noqa: S311 - no secret
    names = ", ".join(f"p{100 * share:g}" for share, _ in points)
    return Samples(
        latencies=latencies,
        source=f"the percentiles {names}",
        in_order=False,
        notes=(
            f"{_FROM_SHARES:,} requests were made up that have these percentiles. What lies between"
            " two of them is a guess, no request is slower than the last one, and slow ones do not"
            " come in bursts.",
        ),
    )


# --- Cloud Monitoring.


def read_time_series(series: Any, reading: Reading) -> Samples:
    """Read the distributions of all points of all series of successful requests as one."""
    buckets: Buckets = defaultdict(float)
    try:
        for one in series:
            metric, labels = one["metric"].get("type", ""), one["metric"].get("labels", {})
            if labels.get("response_code", "success") != "success":
                continue
            unit = reading.unit or one.get("unit")
            unit = unit or ("us" if metric == _PUBLISH_LATENCIES else unit_of(metric, ""))
            if unit not in SECONDS:
                raise InputError(
                    f"the time series of {metric!r} have the unit {unit or None!r}: give it with"
                    f" {UNITS}"
                )
            points = [_distribution(point) for point in _last_of_each(one)]
            for low, high, count in itertools.chain(*map(_of_cloud, points)):
                buckets[SECONDS[unit] * low, SECONDS[unit] * high] += count
    except MALFORMED as error:
        raise InputError(
            "the time series are not distributions as Cloud Monitoring exports them: "
            f"{type(error).__name__} at {error}"
        ) from error
    note = "; and it is what the service measured, without the network"
    return samples_of_buckets(buckets, reading, "time series", note)


def _last_of_each(series: Mapping[str, Any]) -> Iterable[Any]:
    """Return the points; of those that count on from one start, the last one."""
    points: list[Any] = series["points"]
    if series.get("metricKind") != "CUMULATIVE":
        return points
    by_end = sorted(points, key=lambda point: str(point["interval"]["endTime"]))
    return {point["interval"].get("startTime"): point for point in by_end}.values()


def _distribution(point: Mapping[str, Any]) -> Mapping[str, Any]:
    value: Mapping[str, Any] = point["value"]
    if "distributionValue" not in value and len(value) == 1:
        raise InputError(
            "the time series hold one number for each point, so they were aligned to a percentile"
            " or a mean: export them with perSeriesAligner=ALIGN_DELTA, or give percentiles with"
            " options such as --p50 13ms --p99.9 5s"
        )
    found: Mapping[str, Any] = value["distributionValue"]
    return found


def _of_cloud(distribution: Mapping[str, Any]) -> Iterator[tuple[float, float, int]]:
    """Yield lower bound, upper bound and count of each bucket that is not empty."""
    counts = [int(count) for count in distribution.get("bucketCounts", ())]
    if int(distribution.get("count", 0)) != sum(counts):
        raise InputError(
            f"a distribution of {distribution.get('count')} requests has {sum(counts)} in its"
            " buckets: export it with its buckets, not aligned to a percentile"
        )
    if counts:
        bounds = _bounds(distribution["bucketOptions"])
        yield from _between(bounds, counts, distribution.get("range", {}).get("max"))


def _bounds(options: Mapping[str, Any]) -> list[float]:
    """Return the bounds between buckets: one fewer than there are buckets."""
    if "explicitBuckets" in options:
        return [float(bound) for bound in options["explicitBuckets"]["bounds"]]
    if buckets := options.get("exponentialBuckets"):
        scale, growth = float(buckets["scale"]), float(buckets["growthFactor"])
        return [scale * growth**i for i in range(_finite(buckets) + 1)]
    buckets = options["linearBuckets"]
    offset, width = float(buckets.get("offset", 0)), float(buckets["width"])
    return [offset + width * i for i in range(_finite(buckets) + 1)]


def _finite(buckets: Mapping[str, Any]) -> int:
    count = int(buckets["numFiniteBuckets"])
    if not 0 < count <= 10_000:
        raise ValueError(f"{count} buckets")
    return count


def _between(
    bounds: Sequence[float], counts: Sequence[int], largest: object = None
) -> Iterator[tuple[float, float, int]]:
    """Yield the buckets that are not empty; the last one reaches to the largest value seen."""
    if not bounds or not all(map(math.isfinite, bounds)) or list(bounds) != sorted(bounds):
        raise ValueError(f"bounds {bounds[:3]}")
    if len(counts) > len(bounds) + 1 or min(counts) < 0:  # empty ones at the end may be left out
        raise ValueError(f"bucket counts {counts[:3]}")
    end = max(bounds[-1], bounds[-1] if largest is None else float(str(largest)))
    for low, high, count in zip([0.0, *bounds], [*bounds, end], counts, strict=False):
        if count:
            yield max(low, 0.0), max(high, 0.0), count


# --- Prometheus.


def is_prometheus(text: str) -> bool:
    """Tell whether a text is what Prometheus scrapes: samples with labels, one a line."""
    lines = (line for line in text[:100_000].splitlines() if line and line[0] != "#")
    return any(_PROMETHEUS.match(line) for line in itertools.islice(lines, 200))


def read_prometheus_text(text: str, reading: Reading) -> Samples:
    """Read the histogram or the summary among the metrics of a scrape."""
    series = []
    for line in text.splitlines():
        if (found := _PROMETHEUS.match(line)) is not None:
            labels = dict(_LABEL.findall(found[2]))
            series.append(({"__name__": found[1], **labels}, [found[3]]))
    return _read_prometheus(series, reading)


def read_prometheus_query(result: Any, reading: Reading) -> Samples:
    """Read the result of a query that was answered in JSON: a vector, or a matrix over a range."""
    try:
        series = [
            (dict(one["metric"]), [value for _, value in one.get("values") or [one["value"]]])
            for one in result
        ]
    except MALFORMED as error:
        raise InputError(
            f"the query's result is none of Prometheus: {type(error).__name__} at {error}"
        ) from error
    return _read_prometheus(series, reading)


def _read_prometheus(
    series: Sequence[tuple[Mapping[str, str], Sequence[str]]], reading: Reading
) -> Samples:
    cumulative: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    quantiles: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        for labels, texts in series:
            name = labels.get("__name__", "").removesuffix("_bucket")
            values = [float(text) for text in texts]
            if labels.get("error_type"):
                continue
            if "le" in labels:
                is_counter = "__name__" in labels  # a rate has lost its name
                cumulative[name][float(labels["le"])] += _increase(values, is_counter=is_counter)
            elif "quantile" in labels:
                quantiles[name][float(labels["quantile"])] += filter(math.isfinite, values)
    except ValueError as error:
        raise InputError(f"the metrics hold what is no number: {error}") from error
    name = _choose_metric([*cumulative, *quantiles], reading)
    scale = SECONDS[reading.unit or unit_of(name, "" if name else None) or "s"]
    if name not in cumulative:
        found = {at: scale * sum(v) / len(v) for at, v in quantiles[name].items() if v}
        return samples_of_percentiles(found, reading)
    buckets: Buckets = defaultdict(float)
    low, before = 0.0, 0.0
    for bound, count in sorted(cumulative[name].items()):
        high = low if bound == math.inf else scale * bound
        buckets[low, max(low, high)] += max(0.0, count - before)
        low, before = max(low, high), max(before, count)
    return samples_of_buckets(buckets, reading, "buckets")


def _increase(values: Sequence[float], *, is_counter: bool) -> float:
    """Return by how much a counter rose, also over restarts; or the sum of rates."""
    values = [value for value in values if math.isfinite(value)]
    if not is_counter:
        return sum(values)
    rose = sum(b - a if b >= a else b for a, b in pairwise(values))
    return rose or (values[-1] if values else 0.0)


def _choose_metric(names: Sequence[str], reading: Reading) -> str:
    """Return the one that holds latencies, or raise InputError rather than guess."""
    names = list(dict.fromkeys(names))
    if reading.column is not None:
        found = [name for name in names if name == reading.column.removesuffix("_bucket")]
    else:
        found = [name for name in names if _OWN.match(name)]
        found = found or [name for name in names if is_latency(name) or not name]
        found = found or (list(names) if len(names) == 1 else [])
    if len(found) != 1:
        raise InputError(
            f"of the histograms {listed(found or names)} name the one of the latencies with"
            " --column"
            if names
            else "there is no histogram and no summary among the metrics, or a query has dropped"
            " the label 'le'"
        )
    return found[0]


# --- OTLP.


def read_otlp(documents: Sequence[Any], reading: Reading) -> Samples:
    """Read the histogram of latencies in exports of OpenTelemetry, one after the other."""
    try:
        metrics = [
            metric
            for document in documents
            for resource in _get(document, "resourceMetrics")
            for scope in _get(resource, "scopeMetrics")
            for metric in _get(scope, "metrics")
        ]
        histograms = [(one, found) for one in metrics if (found := _histogram(one)) is not None]
        name = _choose_metric([one["name"] for one, _ in histograms], reading)
        chosen = [(one, found) for one, found in histograms if one["name"] == name]
        unit = reading.unit or chosen[0][0].get("unit") or unit_of(name)
        if unit not in SECONDS:
            raise InputError(f"{name!r} has the unit {unit!r}: give it with {UNITS}")
        buckets: Buckets = defaultdict(float)
        for point in _points([found for _, found in chosen]):
            for low, high, count in _of_otlp(point):
                buckets[SECONDS[unit] * low, SECONDS[unit] * high] += count
    except MALFORMED as error:
        raise InputError(
            f"the metrics are no histograms in OTLP: {type(error).__name__} at {error}"
        ) from error
    return samples_of_buckets(buckets, reading, "histograms")


def _get(where: Mapping[str, Any], name: str, default: Any = ()) -> Any:
    """Return what is called so, in the names of the protocol or in those of Python."""
    snake = re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name)
    return where.get(name, where.get(snake, default))


def _histogram(metric: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = _get(metric, "exponentialHistogram", None) or metric.get("histogram")
    found = found or metric.get("data")  # as the SDK prints it
    points = _get(found, "dataPoints") if found else ()
    is_histogram = points and (_get(points[0], "bucketCounts") or "scale" in points[0])
    return found if is_histogram else None


def _points(histograms: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """Return the points without an error; of those that count on from one start, the last one."""
    found: dict[Any, Mapping[str, Any]] = {}
    for histogram in histograms:
        counts_on = str(_get(histogram, "aggregationTemporality", 2)) not in (
            "1",
            "AGGREGATION_TEMPORALITY_DELTA",
        )
        for point in _get(histogram, "dataPoints"):
            attributes = str(point.get("attributes"))
            if "error.type" not in attributes:
                key = (attributes, str(_get(point, "startTimeUnixNano"))) if counts_on else object()
                found[key] = point
    return found.values()


def _of_otlp(point: Mapping[str, Any]) -> Iterator[tuple[float, float, int]]:
    if "scale" not in point:
        counts = [int(count) for count in _get(point, "bucketCounts")]
        if counts:
            yield from _between(_get(point, "explicitBounds"), counts, point.get("max"))
        return
    base = 2.0 ** (2.0 ** -int(point["scale"]))
    if zeros := int(_get(point, "zeroCount", 0)):
        yield 0.0, 0.0, zeros
    positive = point.get("positive") or {}
    for number, count in enumerate(_get(positive, "bucketCounts"), int(positive.get("offset", 0))):
        if int(count):
            yield base**number, base ** (number + 1), int(count)
