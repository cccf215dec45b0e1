"""Reads recorded latencies, whichever of the formats they are in."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, Final

from hedged_pubsub.cli.plan.distribution import read_time_series
from hedged_pubsub.cli.plan.samples import SECONDS, Column, InputError, Reading, Samples
from hedged_pubsub.cli.plan.samples import choose_column as choose
from hedged_pubsub.cli.report import in_words

Line = tuple[int, str]
"""A line and its number, from 1."""

# Of the malformed lines, the first few are named.
_NAMED: Final = 3
_SHOWN_CHARACTERS: Final = 40
# Keys by which an object is told to be numbers of a run, not a recorded request: what the demo
# prints, and a snapshot of a publisher's stats.
_SUMMARIES: Final = ({"plain", "hedged"}, {"batches", "hedges_sent"})


def read_samples(stream: BinaryIO, reading: Reading) -> Samples:
    """Read latencies from any of the formats.

    That is CSV with or without a header, JSON lines, time series of Cloud Monitoring in JSON, or
    what ``hedged-pubsub bench --json`` printed. Raise InputError if the input cannot be used.
    """
    # A byte that is no text makes one malformed line, not the end of it all.
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="\n")
    try:
        return _read_lines(enumerate(text, 1), reading)
    finally:
        text.detach()  # the stream is the caller's to close


def _read_lines(lines: Iterator[Line], reading: Reading) -> Samples:
    first = next((line for line in lines if line[1].strip()), None)
    if first is None:
        raise InputError("the input is empty")
    if first[1].lstrip()[0] not in "[{":
        return _read_csv(first, lines, reading)
    document, others = _document(first[1], lines)
    if document is not None:
        return _read_document(document, reading)
    return _read_json_lines(chain((first,), others), reading)


def _document(first: str, others: Iterable[Line]) -> tuple[Any, Iterable[Line]]:
    """Tell a JSON document from JSON lines: return it, or None and the lines to go on with."""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        # The beginning of a document over many lines, or a malformed line.
        others = list(others)
        try:
            return json.loads(first + "".join(line for _, line in others)), others
        except (ValueError, RecursionError):
            return None, others
    return (value if _is_document(value) else None), others


def _is_document(value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    return "timeSeries" in value or {"setup", "tails"} <= value.keys() or _is_summary(value)


def _is_summary(value: dict[str, Any]) -> bool:
    return any(keys <= value.keys() for keys in _SUMMARIES)


def _read_document(document: Any, reading: Reading) -> Samples:
    if isinstance(document, list):
        return read_time_series(document, reading)
    known = document if isinstance(document, dict) else {}
    if "timeSeries" in known:
        return read_time_series(known["timeSeries"], reading)
    if "tails" in known:
        return _read_bench(known["tails"], reading)
    if _is_summary(known):
        raise InputError(
            "these are a run's counts and percentiles, which is not enough to replay it: plan"
            " needs what each request took"
        )
    raise InputError("the JSON document is none that plan knows")


def _read_bench(tails: Any, reading: Reading) -> Samples:
    """Read the official client's latencies in one of a benchmark's cases."""
    try:
        cases = {row["case"]: [float(value) for value in row["official"]] for row in tails}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the benchmark's tails are not as 'hedged-pubsub bench' prints them: {error!r}"
        ) from error
    if not cases:
        raise InputError("the benchmark has no tails: run it with the workload 'tails'")
    name = reading.column or (next(iter(cases)) if len(cases) == 1 else None)
    if name not in cases:
        listed = ", ".join(map(repr, cases))
        raise InputError(f"choose one of the benchmark's cases with --column: {listed}")
    latencies = cases[name]
    if not latencies or not all(0 <= value < math.inf for value in latencies):
        raise InputError(f"the benchmark's case {name!r} has no latencies, or impossible ones")
    return Samples(latencies=latencies, source=f"the official client in {name!r}")


# --- Latencies one a line: CSV, with or without a header, and JSON lines.


def _read_csv(first: Line, lines: Iterable[Line], reading: Reading) -> Samples:
    """Read rows after a line that names the columns; a file of nothing but numbers needs none."""
    names = [name.strip() for name in _cells(first[1])]
    if not any(map(_is_number, names)):
        column = choose(names, wanted=reading.column, unit=reading.unit)
        index = names.index(column.name)
    elif len(names) == 1 and reading.column is None:
        if reading.unit is None:
            raise InputError(
                "numbers without a header do not tell their unit: give it with --unit s or"
                " --unit ms"
            )
        column, index = Column(name="", unit=reading.unit), 0
        lines = chain((first,), lines)
    else:
        raise InputError(
            f"line {first[0]}: the first line must name the columns; got {_shortened(first[1])}"
        )

    def extract(line: str) -> float:
        cells = _cells(line)
        if index >= len(cells):
            raise ValueError(f"there is no column {index + 1} in {_shortened(line)}")
        try:
            return float(cells[index])
        except ValueError:
            raise ValueError(f"{_shortened(cells[index])} is not a number") from None

    return _samples(lines, extract, reading, lambda: column)


def _read_json_lines(lines: Iterable[Line], reading: Reading) -> Samples:
    """Read JSON objects, each on a line of its own; the first one tells the field."""
    column: Column | None = None
    if reading.column is not None:
        column = choose((reading.column,), wanted=reading.column, unit=reading.unit)

    def extract(line: str) -> float:
        nonlocal column
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{_shortened(line)} is not a JSON object")  # noqa: TRY004
        if column is None:
            column = choose(tuple(record), wanted=None, unit=reading.unit)
        value = record.get(column.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{column.name!r} is not a number in {_shortened(line)}")  # noqa: TRY004
        try:
            return float(value)
        except OverflowError:
            return math.inf

    return _samples(lines, extract, reading, lambda: column)


def _samples(
    lines: Iterable[Line],
    extract: Callable[[str], float],
    reading: Reading,
    get_column: Callable[[], Column | None],
) -> Samples:
    """Take the latency out of each line; ``extract`` raises ValueError where there is none."""
    latencies: list[float] = []
    malformed: list[str] = []
    skipped = 0
    for number, line in lines:
        try:
            value = extract(line)
            if 0 <= value < math.inf:  # never true for NaN
                latencies.append(value)
                continue
            problem = f"a latency cannot be {value!r}"
        except ValueError as error:
            if not line.strip():  # a blank line is not malformed
                continue
            problem = str(error)
        if not reading.skip_malformed:
            raise InputError(f"line {number}: {problem} (--malformed skip leaves such lines out)")
        skipped += 1
        if skipped <= _NAMED:
            malformed.append(f"line {number}: {problem}")
    notes: tuple[str, ...] = ()
    if skipped:
        named = "; ".join(malformed) + ("; …" if skipped > _NAMED else "")
        notes = (f"{in_words(skipped, 'line was', 'lines were')} malformed and skipped ({named}).",)
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


def _cells(line: str) -> list[str]:
    # A row that goes on over several lines would have a single stray quote swallow the rest of
    # the file; here it makes one malformed line.
    return next(csv.reader((line,)), [""]) if '"' in line else line.split(",")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _shortened(text: str) -> str:
    text = text.strip()
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    return repr(text)
