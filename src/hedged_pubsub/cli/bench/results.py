"""What was measured where, as tables of text for the terminal and for a Markdown page alike."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import platform
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from hedged_pubsub._version import __version__
from hedged_pubsub.cli.bench.scenarios import Row
from hedged_pubsub.cli.measures import PERCENTILES, nearest_rank
from hedged_pubsub.cli.report import RefusedError, Report, Table

# The rows of "throughput", "latency", "held", "endurance" and "tails".
Results = Mapping[str, Sequence[Row]]

_OTHERS: Final = ("google-cloud-pubsub", "google-api-core", "grpcio", "protobuf")
_MIB: Final = 2**20
# Load average. On a quiet machine, nothing else runs.
_QUIET: Final = 0.5

# Columns: the header, the key in a row, and how to show it.
_ONE_DIGIT: Final = "{0.low:.1f} – {0.median:.1f} – {0.high:.1f}"  # noqa: RUF001 - a range
_TWO_DIGITS: Final = _ONE_DIGIT.replace(".1f", ".2f")
_THROUGHPUT: Final = (
    ("bytes", "size", "{:,}"),
    ("batch of", "batch", "{:,}"),
    ("official", "official_per_second", "{:,.0f}"),
    ("hedged", "hedged_per_second", "{:,.0f}"),
    ("times as fast", "speedup", _ONE_DIGIT),
    ("official CPU", "official_cpu_us", "{:,.1f} µs"),
    ("hedged CPU", "hedged_cpu_us", "{:,.1f} µs"),
    ("times less CPU", "cpu_saving", _ONE_DIGIT),
)
_LATENCY: Final = (
    ("target", "target", "{}"),
    ("batch settings", "settings", "{}"),
    ("official p50", "official_p50_ms", "{:,.2f} ms"),
    ("hedged p50", "hedged_p50_ms", "{:,.2f} ms"),
    ("hedged / official", "p50_ratio", _TWO_DIGITS),
    ("official p99", "official_p99_ms", "{:,.2f} ms"),
    ("hedged p99", "hedged_p99_ms", "{:,.2f} ms"),
    ("hedged / official", "p99_ratio", _TWO_DIGITS),
)
_HELD: Final = (
    ("threads more than idle", "threads", "{:,}"),
    ("Python objects, bytes a message", "traced_bytes", "{:,.0f}"),
    ("resident memory, bytes a message", "resident_bytes", "{:,.0f}"),
)
_TAIL_PERCENTILES: Final = ("p50", "p99", "p99.9", "max")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Where and with what a benchmark ran."""

    date: str
    machine: str
    versions: str
    load: float | None  # average, before the start; None where the system does not tell

    def in_words(self) -> str:
        """Return all of it, in a sentence or two."""
        words = f"Measured {self.date} on {self.machine}; {self.versions}."
        if self.load is not None and self.load > _QUIET:
            words += (
                f" The machine was busy with other things (load average {self.load:.1f}):"
                " only the ratios tell something."
            )
        return words


def this_setup() -> Setup:
    """Describe this machine and this environment."""
    versions = [f"{platform.python_implementation()} {platform.python_version()}"]
    versions += [f"hedged-pubsub {__version__}", *(f"{name} {version(name)}" for name in _OTHERS)]
    cores = os.cpu_count() or 1
    return Setup(
        date=f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        machine=f"{_processor()}, {cores} {'core' if cores == 1 else 'cores'}, "
        f"{platform.system()} ({platform.machine()})",
        versions=", ".join(versions),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _processor() -> str:
    with contextlib.suppress(OSError):  # another system than Linux
        info = Path("/proc/cpuinfo").read_text()
        if found := re.search(r"^model name\s*:\s*(.*)$", info, re.MULTILINE):
            return found[1].strip()
    return platform.processor() or "an unknown processor"


def make_report(setup: Setup, results: Results) -> Report:
    """Return everything that a run found; a workload that was not asked for has no rows."""
    data = {"setup": setup, **results}
    return Report(data=data, tables=list(_tables(results)), words=setup.in_words())


def _tables(results: Results) -> Iterator[Table]:
    throughput = results["throughput"]
    for target in dict.fromkeys(row["target"] for row in throughput):
        names = {"emulator": "Google's emulator", "server": "the project's server"}
        title = f"Throughput against {names.get(target, target)}, per second, and CPU time per"
        rows = [row for row in throughput if row["target"] == target]
        yield _table("throughput", f"{title} message", _THROUGHPUT, rows)
    if latency := results["latency"]:
        yield _table("latency", "Latency of a single publish", _LATENCY, latency)
    if held := results["held"]:
        yield _held(held)
    yield from map(_endurance, results["endurance"])
    if tails := results["tails"]:
        yield _tails(tails)
        yield _requests(tails)


def _table(
    workload: str, title: str, columns: Sequence[tuple[str, str, str]], rows: Sequence[Row]
) -> Table:
    cells = [[_cell(row[key], how) for _, key, how in columns] for row in rows]
    return Table(workload=workload, title=title, header=[one[0] for one in columns], rows=cells)


def _cell(value: Any, how: str) -> str:
    return "-" if value is None else how.format(value)


def _held(results: Sequence[Row]) -> Table:
    rows = []
    for row in results:
        first = (f"{row['messages']:,}", f"{row['batches']:,}")
        for name, key, how in _HELD:
            values = (_cell(row[f"{client}_{key}"], how) for client in ("official", "hedged"))
            rows.append((*first, name, *values))
            first = ("", "")
    header = ("messages", "in batches", "", "official", "hedged")
    return Table(workload="memory", title="While nothing is answered", header=header, rows=rows)


def _endurance(row: Row) -> Table:
    rows = []
    for name in ("official", "hedged"):
        early, late = (one and one / _MIB for one in row[name].values())
        growth = None if early is None or late is None else late - early
        values = (_cell(early, "{:,.1f} MiB"), _cell(late, "{:,.1f} MiB"))
        rows.append((name, *values, _cell(growth, "{:+,.1f} MiB")))
    of = f"{row['batches']:,} batches of {row['size'] // 1024} KiB"
    header = ("", f"after {row['early']:,}", f"after {row['batches']:,}", "growth")
    title = f"Resident memory over {of}, 5 % of them stalled"
    return Table(workload="memory", title=title, header=header, rows=rows)


def _tails(results: Sequence[Row]) -> Table:
    rows = []
    for row in results:
        case = row["case"]
        for key in ("official", "hedged", "best"):
            ordered = sorted(row[key])
            shown = [statistics.fmean(ordered)]
            shown += [nearest_rank(ordered, PERCENTILES[one]) for one in _TAIL_PERCENTILES]
            name = "best possible" if key == "best" else key
            rows.append((case, name, *(f"{1000 * value:,.0f} ms" for value in shown)))
            case = ""
    title = f"Latency tails; hedge delay {results[0]['hedge_delay']:g} s"
    header = ("requests", "", "mean", *_TAIL_PERCENTILES)
    return Table(workload="tails", title=title, header=header, rows=rows)


def _requests(results: Sequence[Row]) -> Table:
    def shares(row: Row) -> Iterable[str]:
        for key in ("extra_requests", "allowed_requests", "best_extra_requests"):
            yield f"{row[key]:,.0f} ({100 * row[key] / row['publishes']:.1f} %)"

    header = ("requests", "hedged", "budget", "best possible", "sends late by (p99)")
    rows = [(row["case"], *shares(row), f"{1000 * row['lateness']:,.1f} ms") for row in results]
    return Table(workload="tails", title="Extra requests", header=header, rows=rows)


# --- A Markdown page whose marked places hold the tables of the last run.


def check_page(path: Path, workloads: Iterable[str]) -> None:
    """Raise RefusedError unless a page can be read and has a place for each of the workloads."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"--report must be a page that exists: {error}") from error
    for begin, end in map(_markers, workloads):
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise RefusedError(
                f"--report {str(path)!r} must have the lines {begin!r} and {end!r}, once each:"
                " the results go in between"
            )


def write_page(path: Path, report: Report) -> None:
    """Write tables, and when and where each was measured, into the places of their workloads."""
    text = path.read_text(encoding="utf-8")
    for workload in dict.fromkeys(table.workload for table in report.tables):
        begin, end = _markers(workload)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        parts = [_markdown(table) for table in report.tables if table.workload == workload]
        text = "\n\n".join([before + begin, *parts, report.words, end + after])
    path.write_text(text, encoding="utf-8")


def _markers(workload: str) -> tuple[str, str]:
    return f"<!-- bench: {workload} -->", f"<!-- end of bench: {workload} -->"


def _markdown(table: Table) -> str:
    rule = ["---", *("--:" for _ in table.header[1:])]
    lines = [" | ".join(cells) for cells in (table.header, rule, *table.rows)]
    return "\n".join([f"**{table.title}**", "", *(f"| {line} |" for line in lines)])
