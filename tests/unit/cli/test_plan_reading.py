"""What ``hedged-pubsub plan`` reads, and what it says of what it cannot read."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from itertools import pairwise
from typing import Any

import pytest

from hedged_pubsub import HedgingStats
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
    ],
)
def test_lines(text: str, how: dict[str, Any]) -> None:
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
        ("latency_us\n5\n", {}, ["'latency_us'", "--unit"]),
        ("time,topic\n1,a\n", {}, ["none of the columns", "'time', 'topic'", "--column"]),
        ("latency_ms,duration_s\n1,2\n", {}, ["several", "'latency_ms', 'duration_s'"]),
        ("latency_ms\n1\n", {"column": "took"}, ["no column 'took'", "'latency_ms'"]),
        ({"timeSeries": [series(EXPLICIT, [0, 0])]}, {}, ["no successful request"]),
        ({"timeSeries": 5}, {}, ["not distributions"]),
        ({"timeSeries": [{}]}, {}, ["not distributions"]),
        ({"timeSeries": [{"metric": {"type": "x"}, "points": []}]}, {}, ["'x'", "unit None"]),
        ([1, 2, 3], {}, ["not distributions"]),
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
        # The demo and the stats hold no single latencies.
        ({"plain": {"p50_ms": 5}, "hedged": {"p50_ms": 5}}, {}, ["not enough"]),
        (dataclasses.asdict(HedgingStats()), {}, ["not enough"]),
        ('{\n"a":\n1}', {}, []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_used(source: Any, how: dict[str, Any], parts: list[str]) -> None:
    """Nothing is guessed: one line says what is wrong, and which option helps."""
    message = refused(source if isinstance(source, str) else json.dumps(source), **how)
    for part in parts:
        assert part in message
