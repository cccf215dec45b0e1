"""What ``hedged-pubsub plan`` reads, and what it says of what it cannot read."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from itertools import pairwise
from typing import Any

import pytest

from hedged_pubsub import HedgingStats
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
        ("duration_s\n0.005\n1.5\n", {}),
        ("seconds\n0.005\n1.5\n", {}),
        ("elapsed (milliseconds)\n5\n1500\n", {}),
        ("latency\n5\n1500\n", {"unit": "ms"}),
        ("start_ms,took\n1,5\n2,1500\n", {"column": "took", "unit": "ms"}),
        ("latency_ms,duration_s\n5,9\n1500,9\n", {"column": "latency_ms"}),
        ("latency_ms\n0.005\n1.5\n", {"unit": "s"}),
        ("0.005\n1.5\n", {"unit": "s"}),
        ("5\n1500", {"unit": "ms"}),
        ("\n\r\nlatency_ms\r\n5\r\n\r\n1500\r\n\r\n", {}),
        ('topic,latency_ms\n"a, b",5\n"c ""d""",1500\n', {}),
        ("\ufefflatency_ms\n5\n1500\n", {}),
        ('{"latency_ms": 5}\n{"latency_ms": 1500}\n', {}),
        ('{"at": 1, "duration_s": 0.005}\n\n{"at": 2, "duration_s": 1.5}', {}),
        ('{"took": 5}\n{"took": 1500}\n', {"column": "took", "unit": "ms"}),
    ],
)
def test_lines(text: str, how: dict[str, Any]) -> None:
    """CSV and JSON lines, with names that tell column and unit, or with options that do."""
    samples = read(text, **how)
    assert list(samples.latencies) == pytest.approx([0.005, 1.5])
    assert samples.in_order
    assert samples.skipped == 0
    assert samples.notes == ()


@pytest.mark.parametrize(
    ("text", "how", "parts"),
    [
        ("", {}, ["empty"]),
        ("\n  \n", {}, ["empty"]),
        ("latency_ms\n", {}, ["no latency"]),
        ("5\n6\n", {}, ["--unit"]),
        ("5,6\n7,8\n", {}, ["line 1", "name the columns", "'5,6'"]),
        ("latency\n5\n", {}, ["'latency'", "--unit s", "--unit ms"]),
        ("latency_us\n5\n", {}, ["'latency_us'", "--unit"]),
        ("time,topic\n1,a\n", {}, ["none of the columns", "'time', 'topic'", "--column"]),
        ("latency_ms,duration_s\n1,2\n", {}, ["several", "'latency_ms', 'duration_s'"]),
        ("latency_ms\n1\n", {"column": "took"}, ["no column 'took'", "'latency_ms'"]),
        ('{"at": 1}\n', {}, ["none of the columns", "'at'"]),
    ],
)
def test_lines_that_do_not_tell(text: str, how: dict[str, Any], parts: list[str]) -> None:
    """Nothing is guessed: the line says what is missing and which option helps."""
    message = refused(text, **how)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("x,abc", "'abc' is not a number"),
        ("x,", "'' is not a number"),
        ("x", "no column 2 in 'x'"),
        ("x,nan", "cannot be nan"),
        ("x,inf", "cannot be inf"),
        ("x,1e999", "cannot be inf"),
        ("x,-0.001", "cannot be -0.001"),
        ('"x,1', "no column 2"),
        ("x," + "9x" * 100, "…"),
    ],
)
def test_a_malformed_row_is_refused_or_skipped(line: str, part: str) -> None:
    """It is named by its number; ``skip`` leaves out that line and no other."""
    text = f"topic,latency_ms\na,5\n{line}\nb,1500\n"
    message = refused(text)
    assert message.startswith("line 3: ")
    assert part in message
    assert "--malformed skip" in message
    assert len(message) < 150

    samples = read(text, skip_malformed=True)
    assert list(samples.latencies) == [0.005, 1.5]
    assert samples.skipped == 1
    assert len(samples.notes) == 1
    assert "line 3: " in samples.notes[0]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("{", "not a JSON object"),
        ("5", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"took_ms": 5}', "'latency_ms' is not a number"),
        ('{"latency_ms": "5"}', "'latency_ms' is not a number"),
        ('{"latency_ms": true}', "'latency_ms' is not a number"),
        ('{"latency_ms": null}', "'latency_ms' is not a number"),
        ('{"latency_ms": NaN}', "cannot be nan"),
        ('{"latency_ms": -1}', "cannot be -1"),
        (f'{{"latency_ms": 1{"0" * 400}}}', "cannot be inf"),
        (b'{"latency_ms": \xff}', "not a JSON object"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_malformed_json_line_is_refused_or_skipped(line: str | bytes, part: str) -> None:
    """The same for JSON lines."""
    middle = line if isinstance(line, bytes) else line.encode()
    text = b'{"latency_ms": 5}\n' + middle + b'\n{"latency_ms": 1500}\n'
    message = refused(text)
    assert message.startswith("line 2: ")
    assert part in message
    samples = read(text, skip_malformed=True)
    assert list(samples.latencies) == [0.005, 1.5]
    assert samples.skipped == 1


def test_the_first_json_line_can_be_malformed_too() -> None:
    """It does not keep the others from being read as lines."""
    text = '{"latency_ms": \n{"latency_ms": 5}\n{"latency_ms": 1500}\n'
    assert refused(text).startswith("line 1: ")
    assert list(read(text, skip_malformed=True).latencies) == [0.005, 1.5]


def test_of_many_malformed_lines_the_first_few_are_named() -> None:
    """The note says how many there were."""
    text = "latency_ms\n" + "x\n" * 1500 + "5\n"
    (note,) = read(text, skip_malformed=True).notes
    assert note.startswith("1,500 lines were malformed")
    assert "line 2: " in note
    assert "line 4: " in note
    assert "line 5: " not in note


def test_nothing_but_malformed_lines_is_an_error_that_shows_them() -> None:
    """Skipping everything leaves nothing to plan with."""
    message = refused("latency_ms\nx\ny\n", skip_malformed=True)
    assert "no latency" in message
    assert "line 2: 'x' is not a number" in message


def test_progress_is_reported_now_and_then() -> None:
    """Often enough for a bar that moves, and rarely enough to cost nothing."""
    ticks: list[int] = []
    text = "latency_ms\n" + "5\n" * 45_000
    read_samples(io.BytesIO(text.encode()), Reading(), lambda: ticks.append(1))
    assert len(ticks) == 4


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
    known = series(EXPLICIT, [0, 8, 0, 0, 2], distribution={"range": {"min": 1, "max": 3_000_000}})
    unknown = series(EXPLICIT, [0, 8, 0, 0, 2])
    assert max(read(json.dumps([known])).latencies) > 2
    samples = read(json.dumps([unknown]))
    assert max(samples.latencies) == 1.0
    assert any("20 %" in note and "beyond the last bucket" in note for note in samples.notes)


def test_more_requests_than_are_needed_keep_their_shape() -> None:
    """Of a hundred million, a million are taken evenly: rare buckets are not rounded away."""
    samples = read(json.dumps([series(EXPLICIT, [0, 99_990_000, 0, 10_000])]))
    assert len(samples.latencies) == 1_000_000
    assert sum(latency > 0.1 for latency in samples.latencies) == 100


@pytest.mark.parametrize(
    ("document", "part"),
    [
        ({"timeSeries": []}, "no successful request"),
        ({"timeSeries": [series(EXPLICIT, [0, 0])]}, "no successful request"),
        ({"timeSeries": 5}, "not distributions"),
        ({"timeSeries": [{}]}, "not distributions"),
        ({"timeSeries": [{"metric": {"type": "x"}, "points": []}]}, "'x' have the unit None"),
        ([1, 2, 3], "not distributions"),
        ([series({"linearBuckets": {}}, [1])], "not distributions"),
        ([series(EXPLICIT, [1, -1, 5])], "not distributions"),
        ([series({"explicitBuckets": {"bounds": [5, 1]}}, [1])], "not distributions"),
        ([series({"explicitBuckets": {"bounds": [math.nan]}}, [1])], "not distributions"),
        ([series(EXPLICIT, [1] * 9)], "not distributions"),
        ([series(EXPLICIT, [1], distribution={"count": "7"})], "7 requests has 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_distribution(document: Any, part: str) -> None:
    """One line says what is wrong with it."""
    assert part in refused(json.dumps(document))


# --- Runs.


def test_the_latencies_of_a_benchmark() -> None:
    """``bench --json`` holds what each request took: of one case, or of the one that is named."""
    tails = [{"case": "a", "official": [0.1, 0.2]}, {"case": "b", "official": [0.3]}]
    assert list(read(json.dumps({"setup": {}, "tails": tails[:1]})).latencies) == [0.1, 0.2]
    both = json.dumps({"setup": {}, "tails": tails})
    assert list(read(both, column="b").latencies) == [0.3]
    for how in ({}, {"column": "c"}):
        message = refused(both, **how)
        assert "'a', 'b'" in message
        assert "--column" in message


@pytest.mark.parametrize(
    ("tails", "part"),
    [
        ([], "no tails"),
        ([{"case": "a"}], "official"),
        ([{"case": "a", "official": []}], "no latencies"),
        ([{"case": "a", "official": [-1]}], "impossible"),
        ([{"case": "a", "official": ["x"]}], "x"),
    ],
    ids=str,
)
def test_a_wrong_benchmark(tails: Any, part: str) -> None:
    """One line says what is wrong with it."""
    assert part in refused(json.dumps({"setup": {}, "tails": tails}))


@pytest.mark.parametrize(
    "document",
    [{"plain": {"p50_ms": 5}, "hedged": {"p50_ms": 5}}, dataclasses.asdict(HedgingStats())],
    ids=["demo", "stats"],
)
def test_percentiles_are_not_enough(document: Any) -> None:
    """The demo and the stats hold no single latencies; it is said plainly."""
    assert "not enough" in refused(json.dumps(document))
    assert "not enough" in refused(json.dumps(document, indent=2))


@pytest.mark.parametrize("text", ['{\n"a":\n1}', "{}"])
def test_another_document(text: str) -> None:
    """What is not known is refused."""
    assert refused(text)
