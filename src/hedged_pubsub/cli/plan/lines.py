"""Latencies one a line: CSV, with or without a header, and JSON lines."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final

from hedged_pubsub.cli.plan.columns import SECONDS, Column, choose_column
from hedged_pubsub.cli.plan.samples import InputError, Reading, Samples

# Told this often, in lines, a progress bar costs nothing and moves all the same.
_PROGRESS_LINES: Final = 10_000
# Of the malformed lines, the first few are named.
_NAMED: Final = 3
_SHOWN_CHARACTERS: Final = 40


def read_csv(
    first: str,
    others: Iterable[str],
    reading: Reading,
    *,
    number: int,
    on_progress: Callable[[], object],
) -> Samples:
    """Read comma-separated values, each row a line.

    Args:
        first: The line with the columns' names. A file of nothing but numbers needs none.
        others: The lines after it.
        reading: How to read them.
        number: The number of the first line, for errors.
        on_progress: Called now and then.

    Raises:
        InputError: If no latency is found, or a line is malformed and none may be skipped.
    """
    lines = _Lines(reading, on_progress)
    names = [name.strip() for name in _cells(first)]
    if not any(map(_is_number, names)):
        column = choose_column(names, wanted=reading.column, unit=reading.unit)
        index = names.index(column.name)
    elif len(names) == 1 and reading.column is None:
        if reading.unit is None:
            raise InputError(
                "numbers without a header do not tell their unit: give it with --unit s or"
                " --unit ms"
            )
        column, index = Column("", reading.unit), 0
        others, number = chain((first,), others), number - 1
    else:
        raise InputError(
            f"line {number}: the first line must name the columns; got {_shortened(first)}"
        )

    def extract(line: str) -> float:
        cells = _cells(line)
        if index >= len(cells):
            raise ValueError(f"there is no column {index + 1} in {_shortened(line)}")
        try:
            return float(cells[index])
        except ValueError:
            raise ValueError(f"{_shortened(cells[index])} is not a number") from None

    lines.read(others, extract, after=number)
    return lines.samples(column)


def read_json_lines(
    lines: Iterable[str], reading: Reading, *, number: int, on_progress: Callable[[], object]
) -> Samples:
    """Read JSON objects, each on a line of its own.

    Args:
        lines: The lines.
        reading: How to read them.
        number: The number of the first line, for errors.
        on_progress: Called now and then.

    Raises:
        InputError: If no latency is found, or a line is malformed and none may be skipped.
    """
    column: Column | None = None
    if reading.column is not None:
        column = choose_column((reading.column,), wanted=reading.column, unit=reading.unit)

    def extract(line: str) -> float:
        nonlocal column
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{_shortened(line)} is not a JSON object")  # noqa: TRY004
        if column is None:
            column = choose_column(tuple(record), wanted=None, unit=reading.unit)
        value = record.get(column.name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{column.name!r} is not a number in {_shortened(line)}")  # noqa: TRY004
        try:
            return float(value)
        except OverflowError:
            return math.inf

    read = _Lines(reading, on_progress)
    read.read(lines, extract, after=number - 1)
    return read.samples(column)


class _Lines:
    """Latencies, and what was left out."""

    def __init__(self, reading: Reading, on_progress: Callable[[], object]) -> None:
        self._reading = reading
        self._on_progress = on_progress
        self._latencies: list[float] = []
        self._malformed: list[str] = []
        self._skipped = 0

    def read(self, lines: Iterable[str], extract: Callable[[str], float], *, after: int) -> None:
        """Take the latency out of each line; ``extract`` raises ValueError where there is none."""
        append = self._latencies.append
        for number, line in enumerate(lines, after + 1):
            try:
                value = extract(line)
            except ValueError as error:
                if line.strip():  # a blank line is not malformed
                    self._leave_out(f"line {number}: {error}")
            else:
                if 0 <= value < math.inf:  # never true for NaN
                    append(value)
                else:
                    self._leave_out(f"line {number}: a latency cannot be {value!r}")
            if number % _PROGRESS_LINES == 0:
                self._on_progress()

    def samples(self, column: Column | None) -> Samples:
        """Return what was read, in seconds."""
        notes: tuple[str, ...] = ()
        if self._skipped:
            named = "; ".join(self._malformed)
            more = "; …" if self._skipped > _NAMED else ""
            count = "1 line was" if self._skipped == 1 else f"{self._skipped:,} lines were"
            notes = (f"{count} malformed and skipped ({named}{more}).",)
        if column is None or not self._latencies:
            raise InputError(" ".join(("there is no latency in the input.", *notes)))
        scale = SECONDS[column.unit]
        return Samples(
            latencies=[scale * value for value in self._latencies],
            source=f"{column.name!r} in {column.unit}" if column.name else f"in {column.unit}",
            skipped=self._skipped,
            notes=notes,
        )

    def _leave_out(self, problem: str) -> None:
        if not self._reading.skip_malformed:
            raise InputError(f"{problem} (--malformed skip leaves such lines out)")
        self._skipped += 1
        if len(self._malformed) < _NAMED:
            self._malformed.append(problem)


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
