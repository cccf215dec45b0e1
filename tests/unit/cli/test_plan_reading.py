"""What ``hedged-pubsub plan`` reads, and what it says of what it cannot read."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import math
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedged_pubsub import HedgingStats, LatencyPercentiles
from hedged_pubsub.cli.measures import nearest_rank
from hedged_pubsub.cli.plan import distribution
from hedged_pubsub.cli.plan.reading import read_samples
from hedged_pubsub.cli.plan.samples import InputError, Reading, Samples


def read(text: str | bytes, **how: Any) -> Samples:
    """Read a text as if it were a file."""
    data = text if isinstance(text, bytes) else text.encode()
    return read_samples(io.BytesIO(data), Reading(**how))


def refused(text: str | bytes, **how: Any) -> str:
    """Return what is said of an input that cannot be used: one line."""
    with pytest.raises(InputError) as caught:
        read(text, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- Lines.


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("latency_ms\n5\n1500\n", {}),
        ("time,latency_ms,topic\n1,5,a\n2,1500,b\n", {}),
        ("time,publishLatencyMs\n1,5\n2,1500\n", {}),
        ("seconds\n0.005\n1.5\n", {}),
        ("elapsed (milliseconds)\n5\n1500\n", {}),
        ("start_ms,took\n1,5\n2,1500\n", {"column": "took", "unit": "ms"}),
        ("latency_ms,duration_s\n5,9\n1500,9\n", {"column": "latency_ms"}),
        ("latency_ms\n0.005\n1.5\n", {"unit": "s"}),
        ("0.005\n1.5\n", {"unit": "s"}),
        ("5\n1500", {"unit": "ms"}),
        ("\n\r\nlatency_ms\r\n5\r\n\r\n1500\r\n\r\n", {}),
        ('topic,latency_ms\n"a, b",5\n"c ""d""",1500\n', {}),
        ("\ufefflatency_ms\n5\n1500\n", {}),
        ('{"at": 1, "duration_s": 0.005}\n\n{"at": 2, "duration_s": 1.5}', {}),
        ('{"took": 5}\n{"took": 1500}\n', {"column": "took", "unit": "ms"}),
        # Other separators, units and ways to write a number.
        ("at\tlatency_ms\n1\t5\n2\t1500\n", {}),
        ("latency_ms;topic\n5;a, b\n1,500;c\n", {}),
        ('topic,latency_ms\na,5\nb,"1,500.0"\n', {}),
        ("latency_ms\n5\n1,500\n", {}),
        ("latency_ms\n5\n1 500\n", {}),
        ("latency_us\n5000\n1500000\n", {}),
        ("durationMicros\n5000\n1500000\n", {}),
        ("latency_ms\r5\r1500\r", {}),
        # Arrays and nested fields.
        ("[5, 1500]", {"unit": "ms"}),
        ('{"latencies_ms": [5, 1500]}', {}),
        ('{"took": [5, 1500]}', {"unit": "ms"}),
        ('[{"latency_ms": 5}, {"latency_ms": 1500}]', {}),
        ('{"requests": [{"latency_ms": 5}, {"latency_ms": 1500}]}', {}),
        ('{"a": {"b": {"latency_ms": 5}}}\n{"a": {"b": {"latency_ms": 1500}}}', {}),
        ('{"a": {"took": 5}}\n{"a": {"took": 1500}}', {"column": "a.took", "unit": "ms"}),
        # Compressed, and what PowerShell writes.
        (gzip.compress(b"latency_ms\n5\n1500\n", mtime=0), {}),
        ("latency_ms\r\n5\r\n1500\r\n".encode("utf-16"), {}),
    ],
    ids=str,
)
def test_lines(text: str | bytes, how: dict[str, Any]) -> None:
    """CSV and JSON lines, with names that tell column and unit, or with options that do."""
    samples = read(text, **how)
    assert list(samples.latencies) == pytest.approx([0.005, 1.5])
    assert (samples.in_order, samples.skipped, samples.notes) == (True, 0, ())


CSV = ("topic,latency_ms\na,5\n", "\nb,1500\n")
JSON = ('{"a": 0, "latency_ms": 5}\n\n', '\n{"latency_ms": 1500}\n')


@pytest.mark.parametrize(
    ("file", "line", "part"),
    [
        (CSV, "x,abc", "'abc' is not a number"),
        (CSV, "x", "no column 2 in 'x'"),
        (CSV, "x,nan", "cannot be nan"),
        (CSV, "x,inf", "cannot be inf"),
        (CSV, "x,-0.001", "cannot be -0.001"),
        (CSV, '"x,1', "no column 2"),
        (CSV, "x," + "9x" * 100, "…"),
        (JSON, "5", "not a JSON object"),
        (JSON, "[" * 100_000, "not a JSON object"),
        (JSON, '{"took_ms": 5}', "'latency_ms' is not a number"),
        (JSON, '{"latency_ms": "5"}', "'latency_ms' is not a number"),
        (JSON, '{"latency_ms": true}', "'latency_ms' is not a number"),
        (JSON, f'{{"latency_ms": 1{"0" * 400}}}', "cannot be inf"),
        (JSON, b'{"latency_ms": \xff}', "not a JSON object"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_malformed_line_is_refused_or_skipped(
    file: tuple[str, str], line: str | bytes, part: str
) -> None:
    """It is named by its number; ``skip`` leaves out that line and no other."""
    middle = line if isinstance(line, bytes) else line.encode()
    text = file[0].encode() + middle + file[1].encode()
    message = refused(text)
    assert re.match(rf"line 3: .*{re.escape(part)}.*--malformed skip", message)
    assert len(message) < 150
    samples = read(text, skip_malformed=True)
    assert (list(samples.latencies), samples.skipped) == ([0.005, 1.5], 1)
    assert "line 3: " in samples.notes[0]


def test_malformed_lines_anywhere() -> None:
    """The first JSON line can be one; of many, the first few are named, and all are counted."""
    text = '{"latency_ms": \n{"latency_ms": 5}\n{"latency_ms": 1500}\n'
    assert refused(text).startswith("line 1: ")
    assert list(read(text, skip_malformed=True).latencies) == [0.005, 1.5]
    (note,) = read("latency_ms\n" + "x\n" * 1500 + "5\n", skip_malformed=True).notes
    assert note.startswith("1,500 lines were malformed")
    assert re.findall(r"line (\d): ", note) == ["2", "3", "4"]


# --- Distributions of Cloud Monitoring.

EXPONENTIAL = {"exponentialBuckets": {"numFiniteBuckets": 3, "growthFactor": 10, "scale": 1000}}
LINEAR = {"linearBuckets": {"numFiniteBuckets": 3, "width": 1000, "offset": 0}}
EXPLICIT = {"explicitBuckets": {"bounds": [1000, 10_000, 100_000, 1_000_000]}}


def series(
    options: dict[str, Any], counts: list[int], *, type_: str | None = None, **more: Any
) -> dict[str, Any]:
    """Return a time series of one point, as the API's JSON has it: with counts as strings."""
    distribution = {
        "count": str(sum(counts)),
        "bucketOptions": options,
        "bucketCounts": [str(count) for count in counts],
        **more.pop("distribution", {}),
    }
    return {
        "metric": {
            "type": type_ or "pubsub.googleapis.com/topic/send_request_latencies",
            "labels": {"response_code": "success"},
        },
        "points": [{"value": {"distributionValue": distribution}}],
        **more,
    }


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        (EXPONENTIAL, (0.001, 0.01, 0.1, 1.0)),
        (LINEAR, (0.0, 0.001, 0.002, 0.003)),
        (EXPLICIT, (0.001, 0.01, 0.1, 1.0)),
    ],
    ids=["exponential", "linear", "explicit"],
)
def test_buckets_are_spread_evenly_in_microseconds(
    options: dict[str, Any], bounds: tuple[float, ...]
) -> None:
    """Each bucket gives as many latencies, between its bounds; the metric is in microseconds."""
    samples = read(json.dumps({"timeSeries": [series(options, [0, 10, 20, 5])]}))
    latencies = sorted(samples.latencies)
    assert len(latencies) == 35
    parts = (latencies[:10], latencies[10:30], latencies[30:])
    for (low, high), part in zip(pairwise(bounds), parts, strict=True):
        assert low < part[0] < part[-1] < high
        assert sum(part) / len(part) == pytest.approx((low + high) / 2)
    assert not samples.in_order
    assert list(samples.latencies) != latencies


def test_a_list_over_many_lines_and_several_points_is_read_as_well() -> None:
    """As command line tools print it; points and series are added up, failed requests are not."""
    one, other, failed = (series(EXPLICIT, [0, 4, 1]) for _ in range(3))
    one["points"] *= 3
    failed["metric"]["labels"]["response_code"] = "unavailable"
    samples = read(json.dumps([one, other, failed], indent=2))
    assert len(samples.latencies) == 20


@pytest.mark.parametrize(
    ("unit", "option", "largest"), [("ms", None, 1.0), ("s", None, 1000.0), (None, "ms", 1.0)]
)
def test_other_units(unit: str | None, option: str | None, largest: float) -> None:
    """The export names the unit of another metric, or an option does."""
    other = series(EXPLICIT, [0, 1], type_="custom.googleapis.com/publish")
    if unit is not None:
        other["unit"] = unit
    (latency,) = read(json.dumps({"timeSeries": [other]}), unit=option).latencies
    assert latency == pytest.approx(largest * 5.5)


def test_requests_beyond_the_last_bucket_are_noted() -> None:
    """What they took is not known; the largest value is, if the export has a range."""
    counts, largest = [0, 8, 0, 0, 2], {"range": {"min": 1, "max": 3_000_000}}
    assert max(read(json.dumps([series(EXPLICIT, counts, distribution=largest)])).latencies) > 2
    samples = read(json.dumps([series(EXPLICIT, counts)]))
    assert max(samples.latencies) == 1.0
    assert any("20 %" in note and "beyond the last bucket" in note for note in samples.notes)


def test_more_requests_than_are_needed_keep_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred times as many, one in a hundred is taken: rare buckets are not rounded away."""
    monkeypatch.setattr(distribution, "_MAX_SAMPLES", 10_000)
    samples = read(json.dumps([series(EXPLICIT, [0, 999_000, 0, 1_000])]))
    assert len(samples.latencies) == 10_000
    assert sum(latency > 0.1 for latency in samples.latencies) == 10


def tails(*rows: dict[str, Any]) -> dict[str, Any]:
    """Return what a benchmark printed."""
    return {"setup": {}, "tails": rows}


def test_the_latencies_of_a_benchmark() -> None:
    """``bench --json`` holds what each request took: of one case, or of the one that is named."""
    one, other = {"case": "a", "official": [0.1, 0.2]}, {"case": "b", "official": [0.3]}
    assert list(read(json.dumps(tails(one))).latencies) == [0.1, 0.2]
    both = json.dumps(tails(one, other))
    assert list(read(both, column="b").latencies) == [0.3]
    for how in ({}, {"column": "c"}):
        message = refused(both, **how)
        assert "'a', 'b'" in message
        assert "--column" in message


@pytest.mark.parametrize(
    ("source", "how", "parts"),
    [
        ("\n  \n", {}, ["empty"]),
        ("latency_ms\nx\ny\n", {"skip_malformed": True}, ["no latency", "line 2: 'x'"]),
        ("5\n6\n", {}, ["--unit"]),
        ("5,6\n7,8\n", {}, ["line 1", "name the columns", "'5,6'"]),
        ("latency\n5\n", {}, ["'latency'", "--unit us"]),
        ("time,topic\n1,a\n", {}, ["none of the columns", "'time', 'topic'", "--column"]),
        ("latency_ms,duration_s\n1,2\n", {}, ["several", "'latency_ms', 'duration_s'"]),
        ("latency_ms\n1\n", {"column": "took"}, ["no column 'took'", "'latency_ms'"]),
        ({"timeSeries": [series(EXPLICIT, [0, 0])]}, {}, ["no successful request"]),
        ({"timeSeries": 5}, {}, ["not distributions"]),
        ({"timeSeries": [{}]}, {}, ["not distributions"]),
        ({"timeSeries": [{"metric": {"type": "x"}, "points": []}]}, {}, ["'x'", "unit None"]),
        ([1, 2, 3], {}, ["--unit"]),
        ([series({"linearBuckets": {}}, [1])], {}, ["not distributions"]),
        ([series(EXPLICIT, [1, -1, 5])], {}, ["not distributions"]),
        ([series({"explicitBuckets": {"bounds": [5, 1]}}, [1])], {}, ["not distributions"]),
        ([series({"explicitBuckets": {"bounds": [math.nan]}}, [1])], {}, ["not distributions"]),
        ([series(EXPLICIT, [1] * 9)], {}, ["not distributions"]),
        ([series(EXPLICIT, [1], distribution={"count": "7"})], {}, ["7 requests has 1"]),
        (tails(), {}, ["no tails"]),
        (tails({"case": "a"}), {}, ["official"]),
        (tails({"case": "a", "official": []}), {}, ["no latencies"]),
        (tails({"case": "a", "official": [-1]}), {}, ["impossible"]),
        (tails({"case": "a", "official": ["x"]}), {}, ["x"]),
        # A single percentile is no tail, and those of a new publisher are none.
        ({"plain": {"p50_ms": 5}, "hedged": {"p50_ms": 5}}, {}, ["not enough"]),
        (dataclasses.asdict(HedgingStats()), {}, ["not enough"]),
        ({"p50_ms": 5, "p99_ms": 4}, {}, ["p99 (0.004 s)", "p50 (0.005 s)", "rise"]),
        ("p50: 13\np99: 300\n", {}, ["13ms", "'13'"]),
        ("percentile,latency_ms\n50,5\nx,9\n", {}, ["line 3"]),
        ("latency_ms,topic\n1,500,a\n", {}, ["line 2", "3 cells", "2 columns"]),
        ('a_bucket{le="1"} 5\nb_bucket{le="1"} 5\n', {}, ["'a', 'b'", "--column"]),
        ('latency{le="1"} x\n', {}, ["no number"]),
        ({"data": {"result": [{"metric": {}, "value": [1, "5"]}]}}, {}, ["'le'"]),
        ({"resourceMetrics": [5]}, {}, ["OTLP"]),
        ([{**series(EXPLICIT, [1]), "points": [{"value": {"doubleValue": 5}}]}], {}, ["--p50"]),
        ('{\n"a":\n1}', {}, []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_used(source: Any, how: dict[str, Any], parts: list[str]) -> None:
    """Nothing is guessed: one line says what is wrong, and which option helps."""
    message = refused(source if isinstance(source, str) else json.dumps(source), **how)
    for part in parts:
        assert part in message


# --- Histograms and percentiles of others.

# 900 up to 0.1 s, 90 up to a second, 10 up to two.
LES = (("0.1", 900), ("1", 990), ("2", 1000), ("+Inf", 1000))
SCRAPED = "\n".join(
    ["# TYPE messaging_client_operation_duration_seconds histogram"]
    + [
        f'messaging_client_operation_duration_seconds_bucket{{le="{le}",topic="a"}} {count}'
        for le, count in LES
    ]
    + ['messaging_client_operation_duration_seconds_bucket{error_type="X",le="1"} 7', "up 1"]
    + ['other_duration_seconds_bucket{le="+Inf"} 5']
)
RANGE = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"__name__": "publish_seconds_bucket", "le": le},
                # It counts on from 50, and starts again from zero in between.
                "values": [[0, "50"], [60, str(50 + count // 2)], [120, str(count // 2)]],
            }
            for le, count in LES
        ],
    },
}
RATES = [{"metric": {"le": le}, "value": [0, str(count / 7000)]} for le, count in LES]
POINT = {"explicitBounds": [0.1, 1, 2], "bucketCounts": ["900", 90, 10, 0], "attributes": []}


def otlp(point: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an export of one histogram."""
    histogram = {"dataPoints": [point], **more}
    metric = {"name": "publish.duration", "unit": "s", "histogram": histogram}
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}


SDK = {"name": "messaging.client.operation.duration", "unit": "s"}
SDK["data"] = {  # type: ignore[assignment]
    "data_points": [{"explicit_bounds": [0.1, 1, 2], "bucket_counts": [900, 90, 10, 0]}]
}
CUMULATIVE = series(
    EXPLICIT,
    [0, 0, 900, 90, 10],
    metricKind="CUMULATIVE",
    distribution={"range": {"max": 2_000_000}},
)
CUMULATIVE["points"] = [
    {"interval": {"startTime": "a", "endTime": f"{end}"}, **CUMULATIVE["points"][0]} for end in "12"
]


@pytest.mark.parametrize(
    ("source", "how"),
    [
        (SCRAPED, {}),
        (RANGE, {"unit": "s"}),
        (RATES, {"unit": "s"}),
        (otlp(POINT), {}),
        # The last of a series that counts on; all of one that does not; one export a line.
        ("\n".join(json.dumps(otlp(POINT)) for _ in range(3)), {}),
        (otlp({**POINT, "bucketCounts": [450, 45, 5, 0]}, aggregationTemporality=1), {}),
        ({"resource_metrics": [{"scope_metrics": [{"metrics": [SDK]}]}]}, {}),
        ([CUMULATIVE], {}),
    ],
    ids=["scraped", "range", "rates", "otlp", "lines", "delta", "sdk", "cumulative"],
)
def test_histograms(source: Any, how: dict[str, Any]) -> None:
    """Of Prometheus and OpenTelemetry, as they are exported; requests that failed are left out."""
    samples = read(source if isinstance(source, str) else json.dumps(source), **how)
    count = len(samples.latencies)
    assert count in (500, 1000, 50_000)
    shares = [sum(one > bound for one in samples.latencies) / count for bound in (0.1, 1)]
    assert shares == pytest.approx([0.1, 0.01], abs=0.001)


def test_an_exponential_histogram() -> None:
    """Its bounds are powers of two, or of roots of two."""
    positive = {"offset": -4, "bucketCounts": [10, 0, 0, 1]}
    samples = read(json.dumps(otlp({"scale": 0, "zeroCount": 1, "positive": positive})))
    low, *middle, high = sorted(samples.latencies)
    assert low == 0
    assert all(1 / 16 < one < 1 / 8 for one in middle)
    assert 1 / 2 < high < 1


STATS = dataclasses.asdict(
    HedgingStats(original_latency=LatencyPercentiles(count=9, p50=0.013, p99=0.3, p999=5.0))
)


@pytest.mark.parametrize(
    "source",
    [
        "p50: 13ms\np99: 300ms\np99.9: 5s\n",
        "p50_ms,p99_ms,p99_9_ms\n13,300,5000\n",
        "p50_ms\tp99_ms\tp999_ms\n12\t300\t5000\n14\t300\t5000\n",
        "percentile;latency_ms\n50;13\n99;300\np99.9;5000\n",
        json.dumps({"p50": 0.013, "p99": 0.3, "p99.9": 5}),
        json.dumps(STATS),
        "\n".join(
            f'publish_seconds{{quantile="{at}"}} {time}'
            for at, time in (("0.5", 0.013), ("0.99", 0.3), ("0.999", 5))
        ),
    ],
    ids=["list", "row", "rows", "column", "json", "stats", "summary"],
)
def test_percentiles(source: str) -> None:
    """However they are written, requests are made up that have them."""
    samples = read(source)
    ordered = sorted(samples.latencies)
    for parts, expected in ((5_000, 0.013), (9_900, 0.3), (9_990, 5.0), (10_000, 5.0)):
        assert nearest_rank(ordered, parts) == pytest.approx(expected, rel=0.02)
    assert (samples.in_order, "made up" in samples.notes[0]) == (False, True)


def test_a_recording() -> None:
    """Sorted by when requests were sent; of originals, those cut off took longer; of one topic."""
    header = "sent_s,latency_s,topic,attempt,outcome"
    rows = ["30,2,t,0,stored", "10,0.1,t,0,stored", "20,0.2,t,0,censored", "20.1,0.1,t,1,stored"]
    rows += ["11,9,t,0,late", "12,9,t,0,UNAVAILABLE", "13,9,other,0,stored", header]
    samples = read("\n".join([header, *rows]))
    assert samples.latencies == [0.1, 2, 2]
    assert samples.rate == pytest.approx(0.1)
    notes = " ".join(samples.notes)
    for part in ("1 request was cut off", "(UNAVAILABLE, late) left out", "2 topics", "'t'"):
        assert part in notes
    assert read("\n".join([header, *rows]), topic="other").latencies == [9]


@pytest.mark.parametrize(("unit", "strange"), [("ms", False), ("s", False), ("us", True)])
def test_a_unit_that_looks_wrong(unit: str, strange: bool) -> None:
    """A median that no publish request has is noted."""
    assert any("unit right" in note for note in read("13\n14\n15\n", unit=unit).notes) == strange


NAMES = "timeSeries data result metric value points tails setup resourceMetrics plain p50 p99 le x"


@given(
    st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=40).map(gzip.compress).map(lambda data: data[:-3]),
        st.builds(
            lambda start, rest: (start + rest).encode(errors="replace"),
            st.sampled_from(
                ["latency_ms\n", "[", '{"timeSeries":', '{"data":{"result":', 'a{le="1"} ', "p50 "]
            ),
            st.text(max_size=60),
        ),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(NAMES.split()),
                    inner,
                    max_size=3,
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
@example(b"latency_ms\n1\r2\n\x00,,\xff\n" + b"," * 10_000)
@example(b'latency_ms\n"' + b"x" * 200_000)
@example(b"[" + b"9" * 5_000 + b"]")
@settings(max_examples=100)
def test_whatever_it_is_there_is_no_traceback(data: bytes) -> None:
    """It is read, or refused with a reason."""
    for how in ({}, {"unit": "ms", "skip_malformed": True}):
        with contextlib.suppress(InputError):
            assert all(map(math.isfinite, read(data, **how).latencies))
