"""The results as tables of text, for the terminal and for the page alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hedged_pubsub.cli.bench.memory import Growth
from hedged_pubsub.cli.bench.results import Results
from hedged_pubsub.cli.bench.spread import Spread
from hedged_pubsub.cli.report import nearest_rank

_MIB: Final = 2**20
_PERCENTILES: Final = (("p50", 500), ("p99", 990), ("p99.9", 999), ("max", 1000))


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of text.

    Attributes:
        workload: Which part of the page it belongs to.
        title: What it is about.
        header: The columns' names.
        rows: A text for each column.
    """

    workload: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(results: Results) -> tuple[Table, ...]:
    """Return the tables of all that was measured."""
    targets = list(dict.fromkeys(row.target for row in results.throughput + results.latency))
    made = [
        *(_throughput(results, target) for target in targets if results.throughput),
        *([_latency(results)] if results.latency else []),
        *([_held(results)] if results.held else []),
        *([_endurance(results)] if results.endurance else []),
        *([_tails(results), _requests(results)] if results.tails else []),
    ]
    return tuple(made)


def _throughput(results: Results, target: str) -> Table:
    return Table(
        workload="throughput",
        title=f"Throughput against {_in_words(target)}, per second, and CPU time per message",
        header=(
            "bytes",
            "batch of",
            "official",
            "hedged",
            "times as fast",
            "official CPU",
            "hedged CPU",
            "times less CPU",
        ),
        rows=tuple(
            (
                f"{row.size:,}",
                f"{row.batch:,}",
                f"{row.official_per_second:,.0f}",
                f"{row.hedged_per_second:,.0f}",
                _spread(row.speedup),
                f"{row.official_cpu_us:,.1f} µs",
                f"{row.hedged_cpu_us:,.1f} µs",
                _spread(row.cpu_saving),
            )
            for row in results.throughput
            if row.target == target
        ),
    )


def _latency(results: Results) -> Table:
    return Table(
        workload="latency",
        title="Latency of a single publish",
        header=(
            "target",
            "batch settings",
            "official p50",
            "hedged p50",
            "hedged / official",
            "official p99",
            "hedged p99",
            "hedged / official",
        ),
        rows=tuple(
            (
                row.target,
                row.settings,
                f"{row.official_p50_ms:,.2f} ms",
                f"{row.hedged_p50_ms:,.2f} ms",
                _spread(row.p50_ratio, digits=2),
                f"{row.official_p99_ms:,.2f} ms",
                f"{row.hedged_p99_ms:,.2f} ms",
                _spread(row.p99_ratio, digits=2),
            )
            for row in results.latency
        ),
    )


def _held(results: Results) -> Table:
    return Table(
        workload="memory",
        title="While nothing is answered",
        header=("messages", "in batches", "", "official", "hedged"),
        rows=tuple(
            cells
            for row in results.held
            for cells in (
                (
                    f"{row.messages:,}",
                    f"{row.batches:,}",
                    "threads more than idle",
                    f"{row.official_threads:,}",
                    f"{row.hedged_threads:,}",
                ),
                (
                    "",
                    "",
                    "Python objects, bytes a message",
                    f"{row.official_traced_bytes:,.0f}",
                    f"{row.hedged_traced_bytes:,.0f}",
                ),
                (
                    "",
                    "",
                    "resident memory, bytes a message",
                    _or_dash(row.official_resident_bytes),
                    _or_dash(row.hedged_resident_bytes),
                ),
            )
        ),
    )


def _endurance(results: Results) -> Table:
    def cells(name: str, growth: Growth) -> tuple[str, ...]:
        if growth.early is None or growth.late is None:
            return (name, "-", "-", "-")
        early, late = growth.early / _MIB, growth.late / _MIB
        return (name, f"{early:,.1f} MiB", f"{late:,.1f} MiB", f"{late - early:+,.1f} MiB")

    (row,) = results.endurance
    return Table(
        workload="memory",
        title=f"Resident memory over {row.batches:,} batches of {row.size // 1024} KiB, "
        "5 % of them stalled",
        header=("", f"after {row.early:,}", f"after {row.batches:,}", "growth"),
        rows=(cells("official", row.official), cells("hedged", row.hedged)),
    )


def _tails(results: Results) -> Table:
    def cells(case: str, name: str, latencies: Sequence[float]) -> tuple[str, ...]:
        ordered = sorted(latencies)
        return (
            case,
            name,
            f"{1000 * statistics.fmean(ordered):,.0f} ms",
            *(f"{1000 * nearest_rank(ordered, rank):,.0f} ms" for _, rank in _PERCENTILES),
        )

    return Table(
        workload="tails",
        title=f"Latency tails; hedge delay {results.tails[0].hedge_delay:g} s",
        header=("requests", "", "mean", *(name for name, _ in _PERCENTILES)),
        rows=tuple(
            row
            for tail in results.tails
            for row in (
                cells(tail.case, "official", tail.official),
                cells("", "hedged", tail.hedged),
                cells("", "best possible", tail.best),
            )
        ),
    )


def _requests(results: Results) -> Table:
    def share(count: float, publishes: int) -> str:
        return f"{count:,.0f} ({100 * count / publishes:.1f} %)"

    return Table(
        workload="tails",
        title="Extra requests",
        header=("requests", "hedged", "budget", "best possible", "sends late by (p99)"),
        rows=tuple(
            (
                tail.case,
                share(tail.extra_requests, tail.publishes),
                share(tail.allowed_requests, tail.publishes),
                share(tail.best_extra_requests, tail.publishes),
                f"{1000 * tail.lateness:,.1f} ms",
            )
            for tail in results.tails
        ),
    )


def _in_words(target: str) -> str:
    return {"emulator": "Google's emulator", "server": "the project's server"}.get(target, target)


def _spread(values: Spread, *, digits: int = 1) -> str:
    return " – ".join(f"{value:.{digits}f}" for value in (values.low, values.median, values.high))  # noqa: RUF001 - a range


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
