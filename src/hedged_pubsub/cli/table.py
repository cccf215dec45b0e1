"""The report as a table for a terminal, and the progress bar before it (needs ``rich``)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hedged_pubsub.cli.report import Report


def print_report(report: Report) -> None:
    """Print the table and what it says in words to stdout."""
    console = Console(file=sys.stdout, highlight=False)
    console.print(_table(report))
    console.print(report.in_words())


def print_tables(
    tables: Iterable[tuple[str, Sequence[str], Iterable[Sequence[str]]]], note: str
) -> None:
    """Print tables, each a title, a header and rows, and a note to stdout."""
    console = Console(file=sys.stdout, highlight=False)
    for title, header, rows in tables:
        table = Table(title=title, title_justify="left")
        for number, name in enumerate(header):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(note)


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Progress bars on stderr, so that stdout holds the result alone."""
    # Few refreshes: each one takes the interpreter for some milliseconds from the clients that
    # are being measured.
    with Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=3,
    ) as progress:
        yield progress


def _table(report: Report) -> Table:
    plain, hedged = report.plain, report.hedged
    table = Table(title="Publish latency with and without hedging")
    table.add_column("")
    table.add_column("PublisherClient", justify="right")
    table.add_column("HedgedPublisher", justify="right")
    for name, plain_ms, hedged_ms in (
        ("p50", plain.p50_ms, hedged.p50_ms),
        ("p90", plain.p90_ms, hedged.p90_ms),
        ("p99", plain.p99_ms, hedged.p99_ms),
        ("p99.9", plain.p99_9_ms, hedged.p99_9_ms),
        ("max", plain.max_ms, hedged.max_ms),
    ):
        table.add_row(name, f"{plain_ms:,.1f} ms", f"{hedged_ms:,.1f} ms")
    table.add_section()
    table.add_row("RPCs sent", f"{plain.requests:,}", f"{hedged.requests:,}")
    table.add_row("extra requests", "", f"{hedged.extra_requests_pct:.1f} %")
    table.add_row("hedges sent", "", f"{hedged.hedges_sent:,}")
    table.add_row("hedges won", "", f"{hedged.hedges_won:,}")
    table.add_row("hedges suppressed", "", f"{hedged.hedges_suppressed:,}")
    table.add_row("duplicates stored", "", f"{hedged.duplicates:,}")
    return table
