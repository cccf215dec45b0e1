"""Reads recorded latencies, whichever of the formats they are in."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, BinaryIO, Final

from hedged_pubsub.cli.plan.distribution import read_time_series
from hedged_pubsub.cli.plan.lines import read_csv, read_json_lines
from hedged_pubsub.cli.plan.samples import InputError, Reading, Samples

# Keys by which an object is told to be numbers of a run, not a recorded request: what the demo
# prints, and a snapshot of a publisher's stats.
_SUMMARIES: Final = ({"plain", "hedged"}, {"batches", "hedges_sent"})


def read_samples(
    stream: BinaryIO, reading: Reading, on_progress: Callable[[], object] = lambda: None
) -> Samples:
    """Read latencies.

    Args:
        stream: CSV with or without a header, JSON lines, time series of Cloud Monitoring in JSON,
            or what ``hedged-pubsub bench --json`` printed.
        reading: How to read it.
        on_progress: Called now and then while lines are read.

    Raises:
        InputError: If the input is empty or malformed, or holds no latencies.
        OSError: If it cannot be read.
    """
    # A byte that is no text makes one malformed line, not the end of it all.
    lines = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace", newline="\n")
    number, first = next(
        ((number, line) for number, line in enumerate(lines, 1) if line.strip()), (0, "")
    )
    if not first:
        raise InputError("the input is empty")
    if first.lstrip()[0] not in "[{":
        return read_csv(first, lines, reading, number=number, on_progress=on_progress)
    document, others = _document(first, lines)
    if document is not None:
        return _read_document(document, reading)
    return read_json_lines(chain((first,), others), reading, number=number, on_progress=on_progress)


def _document(first: str, others: Iterable[str]) -> tuple[Any, Iterable[str]]:
    """Tell a JSON document from JSON lines: return it, or ``None`` and the lines to go on with."""
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        # The beginning of a document over many lines, or a malformed line.
        others = list(others)
        try:
            return json.loads(first + "".join(others)), others
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
    if isinstance(document, dict) and "timeSeries" in document:
        return read_time_series(document["timeSeries"], reading)
    if isinstance(document, dict) and "tails" in document:
        return _read_bench(document["tails"], reading)
    if isinstance(document, dict) and _is_summary(document):
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
