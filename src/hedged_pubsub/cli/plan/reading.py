"""Reads recorded latencies, whichever of the formats they are in."""

from __future__ import annotations

import bisect
import csv
import gzip
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, Final, TypeVar

from hedged_pubsub.cli.plan import distribution
from hedged_pubsub.cli.plan.distribution import MALFORMED, samples_of_percentiles
from hedged_pubsub.cli.plan.samples import (
    SECONDS,
    UNITS,
    Column,
    InputError,
    Reading,
    Samples,
    check_unit,
    choose_column,
    duration,
    is_latency,
    listed,
    mean_by_percentile,
    number,
    percentile_of,
    shortened,
    unit_of,
)
from hedged_pubsub.cli.report import in_words

Line = tuple[int, str]
"""A line and its number, from 1."""

T = TypeVar("T")
U = TypeVar("U")

# Of the malformed lines, the first few are named.
_NAMED: Final = 3
_DELIMITERS: Final = ",;\t|"
_RECORDING: Final = ["sent_s", "latency_s", "topic", "attempt", "outcome"]
# A percentile and its time, one a line: "p99: 300ms".
_LISTED: Final = re.compile(r"\s*([pP]\d[\d._]*)\s*[:=,;\t ]\s*([^\s,;]+)\s*")
_GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2


def read_samples(stream: BinaryIO, reading: Reading) -> Samples:
    """Read latencies from any of the formats, which their content tells.

    Raise InputError if the input cannot be used.
    """
    try:
        samples = _read(_text(stream.read()), reading)
    except MemoryError:
        raise InputError("the input does not fit into memory") from None
    return replace(samples, notes=(*samples.notes, *check_unit(samples)))


def _text(data: bytes) -> str:
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise InputError(f"the gzip file is damaged: {error}") from error
    # UTF-16 is what PowerShell writes. A byte that is no text makes one malformed line.
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = data.decode(encoding, errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read(text: str, reading: Reading) -> Samples:
    lines = enumerate(text.split("\n"), 1)
    first = next((line for line in lines if line[1].strip()), None)
    if first is None:
        raise InputError("the input is empty")
    if first[1].lstrip()[0] in "[{":
        return _read_json(text, reading)
    if distribution.is_prometheus(text):
        return distribution.read_prometheus_text(text, reading)
    found = [_LISTED.fullmatch(line) for line in text.splitlines() if line.strip()]
    if all(found):
        return _listed_percentiles([(one[1], one[2]) for one in found if one], reading)
    return _read_csv(text, first, lines, reading)


def _listed_percentiles(pairs: Iterable[tuple[str, str]], reading: Reading) -> Samples:
    try:
        times = {percentile_of(name): duration(time, reading.unit) for name, time in pairs}
    except ValueError as error:
        raise InputError(f"a percentile {error}") from error
    return samples_of_percentiles({at: time for at, time in times.items() if at}, reading)


# --- JSON: a document that has a form of its own, or records.


def _read_json(text: str, reading: Reading) -> Samples:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _read_json_lines(text, reading)
    if isinstance(document, dict) and (reader := _reader_of(document)):
        return reader(document, reading)
    if isinstance(document, list):
        return _read_list(document, reading)
    lists = {name: value for name, value in document.items() if isinstance(value, list) and value}
    if reading.column in lists:
        lists = {reading.column: lists[reading.column]}
    if len(lists) == 1:
        ((name, values),) = lists.items()
        unit = reading.unit or unit_of(name, "")
        return _read_list(values, replace(reading, column=None, unit=unit or None))
    return _read_records([(1, document)], reading)


def _reader_of(document: Mapping[str, Any]) -> Callable[[Any, Reading], Samples] | None:
    if "timeSeries" in document:
        return lambda found, reading: distribution.read_time_series(found["timeSeries"], reading)
    if "resourceMetrics" in document or "resource_metrics" in document:
        return lambda found, reading: distribution.read_otlp([found], reading)
    if isinstance(data := document.get("data"), dict) and "result" in data:
        return lambda found, reading: distribution.read_prometheus_query(
            found["data"]["result"], reading
        )
    if {"setup", "tails"} <= document.keys():
        return lambda found, reading: _read_bench(found["tails"], reading)
    for name in ("original_latency", "plain"):  # of hedging_stats(), of the demo
        if isinstance(document.get(name), dict):
            return lambda found, reading: _read_percentiles([found[name]], reading)
    if len([name for name in document if percentile_of(name) is not None]) > 1:
        return lambda found, reading: _read_percentiles([found], reading)
    return None


def _read_list(values: Sequence[Any], reading: Reading) -> Samples:
    first = values[0] if values else None
    if isinstance(first, dict):
        if "points" in first or "metric" in first:
            if "value" in first or "values" in first:
                return distribution.read_prometheus_query(values, reading)
            return distribution.read_time_series(values, reading)
        return _read_records(enumerate(values, 1), reading, "record")
    if reading.unit is None:
        raise InputError(f"a list of numbers does not tell its unit: give it with {UNITS}")
    column = Column(name="", unit=reading.unit)
    return _samples(enumerate(values, 1), _as_number, reading, lambda: column, "value")


def _read_percentiles(tables: Sequence[Mapping[str, Any]], reading: Reading) -> Samples:
    """Read percentiles by their names, such as ``p99_9_ms``, of one row or more."""
    found: list[dict[float, float]] = []
    for table in tables:
        row: dict[float, float] = {}
        for name, value in table.items():
            share = percentile_of(str(name))
            if share is None or value is None or value == "":
                continue
            try:
                # Without a unit they are in seconds, as those of hedging_stats().
                row[share] = duration(str(value), reading.unit or unit_of(str(name), "s"))
            except ValueError as error:
                raise InputError(f"{name} {error}") from error
        found.append(row)
    samples = samples_of_percentiles(mean_by_percentile(found), reading)
    if len(found) > 1:
        note = f"Of {len(found):,} rows of percentiles the mean of each was taken."
        samples = replace(samples, notes=(*samples.notes, note))
    return samples


def _read_bench(tails: Any, reading: Reading) -> Samples:
    """Read the official client's latencies in one of a benchmark's cases."""
    try:
        cases = {row["case"]: [float(value) for value in row["official"]] for row in tails}
    except MALFORMED as error:
        raise InputError(
            f"the benchmark's tails are not as 'hedged-pubsub bench' prints them: {error!r}"
        ) from error
    if not cases:
        raise InputError("the benchmark has no tails: run it with the workload 'tails'")
    name = reading.column or (next(iter(cases)) if len(cases) == 1 else None)
    if name not in cases:
        raise InputError(f"choose one of the benchmark's cases with --column: {listed([*cases])}")
    latencies = cases[name]
    if not latencies or not all(0 <= value < math.inf for value in latencies):
        raise InputError(f"the benchmark's case {name!r} has no latencies, or impossible ones")
    return Samples(latencies=latencies, source=f"the official client in {name!r}")


def _read_json_lines(text: str, reading: Reading) -> Samples:
    lines = [(count, line) for count, line in enumerate(text.split("\n"), 1) if line.strip()]
    documents = [_parsed(line) for _, line in lines]
    if isinstance(documents[0], dict) and _reader_of(documents[0]):  # of a collector
        return distribution.read_otlp([one for one in documents if one is not None], reading)
    records = (
        (at, line if one is None else one) for (at, line), one in zip(lines, documents, strict=True)
    )
    return _read_records(records, reading)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _read_records(
    records: Iterable[tuple[int, Any]], reading: Reading, what: str = "line"
) -> Samples:
    """Read JSON objects, the first of which tells the field; nested ones are ``a.b``."""
    column: Column | None = None
    if reading.column is not None:
        column = choose_column((reading.column,), wanted=reading.column, unit=reading.unit)

    def extract(record: Any) -> float:
        nonlocal column
        if not isinstance(record, dict):
            raise ValueError(f"{_shown(record)} is not a JSON object")  # noqa: TRY004
        if column is None:
            column = choose_column([*_fields(record)], wanted=None, unit=reading.unit)
        value = record.get(column.name)
        if value is None:
            value = dict(_fields(record).items()).get(column.name)
        try:
            return _as_number(value)
        except ValueError:
            raise ValueError(f"{column.name!r} is not a number in {_shown(record)}") from None

    return _samples(records, extract, reading, lambda: column, what)


def _fields(record: Mapping[str, Any], depth: int = 8) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict) and depth:
            fields |= {f"{name}.{inner}": one for inner, one in _fields(value, depth - 1).items()}
        else:
            fields[name] = value
    return fields


def _as_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{_shown(value)} is not a number")  # noqa: TRY004
    try:
        return float(value)
    except OverflowError:
        return math.inf


# --- CSV, with or without a header.


def _read_csv(text: str, first: Line, lines: Iterable[Line], reading: Reading) -> Samples:
    """Read rows after a line that names the columns; a file of nothing but numbers needs none."""
    delimiter = _delimiter(first[1], text)
    names = [name.strip() for name in _cells(first[1], delimiter)]
    if names == _RECORDING:
        return _read_recording(lines, reading)
    if any(map(_is_number, names)):
        if len(names) > 1 or reading.column is not None:
            raise InputError(
                f"line {first[0]}: the first line must name the columns; got {_shown(first[1])}"
            )
        if reading.unit is None:
            raise InputError(
                f"numbers without a header do not tell their unit: give it with {UNITS}"
            )
        column, index = Column(name="", unit=reading.unit), 0
        lines = (first, *lines)
    elif reading.column is None and (table := _percentile_table(names, lines, delimiter)):
        return _read_percentiles(table, reading)
    else:
        column = choose_column(names, wanted=reading.column, unit=reading.unit)
        index = names.index(column.name)

    def extract(line: str) -> float:
        cells = _cells(line, delimiter)
        if index >= len(cells):
            raise ValueError(f"there is no column {index + 1} in {_shown(line)}")
        if len(cells) > len(names):
            raise ValueError(
                f"{len(cells)} cells where there are {in_words(len(names), 'column', 'columns')},"
                f" in {_shown(line)}"
            )
        try:
            return number(cells[index])
        except ValueError:
            raise ValueError(f"{_shown(cells[index])} is not a number") from None

    return _samples(lines, extract, reading, lambda: column)


def _delimiter(header: str, text: str) -> str:
    try:
        found = csv.Sniffer().sniff(text[:20_000], _DELIMITERS).delimiter
    except csv.Error:
        found = ""
    if found not in header or not found:  # in the rows alone it sets thousands apart
        found = max(_DELIMITERS, key=header.count)
    return found if found in header else "\n"


def _percentile_table(
    names: Sequence[str], lines: Iterable[Line], delimiter: str
) -> list[dict[str, str]]:
    """Return rows of percentiles: named by the columns, or a column of them beside one of times."""
    if sum(percentile_of(name) is not None for name in names) > 1:
        rows = [_cells(line, delimiter) for _, line in lines if line.strip()]
        return [dict(zip(names, row, strict=False)) for row in rows]
    at = [i for i, name in enumerate(names) if name.lower() in ("percentile", "quantile")]
    times = [i for i, name in enumerate(names) if is_latency(name)]
    if not at or len(times) != 1:
        return []
    table = {}
    unit = unit_of(names[times[0]], "")
    for count, line in lines:
        cells = _cells(line, delimiter)
        if not line.strip():
            continue
        try:
            share = float(cells[at[0]].strip(" pP%"))
            percent = 100 * share if share <= 1 else share
            table[f"p{percent:.6g}"] = f"{cells[times[0]].strip()}{unit}"
        except (IndexError, ValueError):
            raise InputError(f"line {count}: {_shown(line)} has no percentile") from None
    return [table]


def _cells(line: str, delimiter: str) -> list[str]:
    # A row that goes on over several lines would have a single stray quote swallow the rest of
    # the file; here it makes one malformed line.
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader((line,), delimiter="," if delimiter == "\n" else delimiter), [""])
    except csv.Error:
        return [""]


def _is_number(cell: str) -> bool:
    try:
        number(cell)
    except ValueError:
        return False
    return True


# --- A recording of this library.


def _read_recording(lines: Iterable[Line], reading: Reading) -> Samples:
    """Read the originals that were stored, in the order in which they were sent.

    One that was cut off would have taken longer: it is taken to be one of those that did, each of
    them in turn, as the measured delay does.
    """
    ends: Counter[str] = Counter()

    def extract(line: str) -> tuple[float, float, str, str] | None:
        cells = _cells(line, ",")
        if cells == _RECORDING:  # of a second file behind the first one
            return None
        if len(cells) != len(_RECORDING):
            raise ValueError(f"{_shown(line)} is no row of a recording")
        sent, latency, (topic, attempt, outcome) = number(cells[0]), number(cells[1]), cells[2:]
        if not (math.isfinite(sent) and 0 <= latency < math.inf):
            raise ValueError(f"a latency cannot be {latency!r}")
        ends[outcome] += attempt == "0"
        is_sample = attempt == "0" and outcome in ("stored", "censored")
        return (sent, latency, topic, outcome) if is_sample else None

    taken, skipped, notes = _each(lines, extract, reading, "line")
    rows = sorted(row for row in taken if row is not None)
    topics = Counter(topic for _, _, topic, _ in rows)
    topic = reading.topic or (topics.most_common(1)[0][0] if topics else "")
    if not topics[topic]:
        raise InputError(f"no request of topic {topic!r} was stored, of {listed([*topics])} some")
    rows = [row for row in rows if row[2] == topic]
    if len(topics) > 1:
        notes += (
            f"Of {len(topics)} topics this is about {topic!r}, each of which has tokens of its own:"
            " --topic names another.",
        )
    if lost := sum(outcome == "censored" for *_, outcome in rows):
        notes += (
            f"{in_words(lost, 'request was', 'requests were')} cut off when a hedge was answered"
            " first. What they would have taken is drawn from the slower ones that were not.",
        )
    failed = {name: count for name, count in ends.items() if name not in ("stored", "censored")}
    if count := sum(failed.values()):
        names = ", ".join(shortened(name) for name in sorted(failed)[:8])
        notes += (
            f"{in_words(count, 'request', 'requests')} that ended otherwise ({names}) left out.",
        )
    span = rows[-1][0] - rows[0][0]
    return Samples(
        latencies=_completed(rows),
        source=f"{topic!r}",
        rate=(len(rows) - 1) / span if span > 0 else None,
        skipped=skipped,
        notes=notes,
    )


def _completed(rows: Sequence[tuple[float, float, str, str]]) -> list[float]:
    known = sorted(latency for _, latency, _, outcome in rows if outcome == "stored")
    turn, latencies = 0.0, []
    for _, latency, _, outcome in rows:
        first = bisect.bisect_right(known, latency)
        if outcome == "censored" and first < len(known):
            turn = (turn + _GOLDEN_RATIO) % 1
            latency = known[first + int(turn * (len(known) - first))]
        latencies.append(latency)
    return latencies


# --- What all have in common.


def _samples(
    items: Iterable[tuple[int, T]],
    extract: Callable[[T], float],
    reading: Reading,
    get_column: Callable[[], Column | None],
    what: str = "line",
) -> Samples:
    """Take the latency out of each item; ``extract`` raises ValueError where there is none."""

    def checked(item: T) -> float:
        value = extract(item)
        if not 0 <= value < math.inf:  # never true for NaN
            raise ValueError(f"a latency cannot be {value!r}")
        return value

    latencies, skipped, notes = _each(items, checked, reading, what)
    column = get_column()
    if column is None or not latencies:
        raise InputError(" ".join(("there is no latency in the input.", *notes)))
    scale = SECONDS[column.unit]
    return Samples(
        latencies=[scale * value for value in latencies],
        source=f"{column.name!r} in {column.unit}" if column.name else f"in {column.unit}",
        skipped=skipped,
        notes=notes,
    )


def _each(
    items: Iterable[tuple[int, T]], extract: Callable[[T], U], reading: Reading, what: str
) -> tuple[list[U], int, tuple[str, ...]]:
    """Return what is taken out of the items, how many are malformed, and a note on those."""
    found: list[U] = []
    malformed: list[str] = []
    skipped = 0
    for count, item in items:
        try:
            found.append(extract(item))
            continue
        except ValueError as error:
            if isinstance(item, str) and not item.strip():  # a blank line is not malformed
                continue
            problem = f"{what} {count}: {error}"
        if not reading.skip_malformed:
            raise InputError(f"{problem} (--malformed skip leaves such {what}s out)")
        skipped += 1
        if skipped <= _NAMED:
            malformed.append(problem)
    if not skipped:
        return found, 0, ()
    named = "; ".join(malformed) + ("; …" if skipped > _NAMED else "")
    words = in_words(skipped, f"{what} was", f"{what}s were")
    return found, skipped, (f"{words} malformed and skipped ({named}).",)


def _shown(value: object) -> str:
    """Return what is malformed, for a message of one line."""
    return repr(shortened(value if isinstance(value, str) else json.dumps(value)))
