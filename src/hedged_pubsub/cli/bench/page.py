"""A Markdown page whose marked places hold the tables of the last run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hedged_pubsub.cli.bench.setup import Setup
from hedged_pubsub.cli.bench.tables import Table
from hedged_pubsub.cli.values import UsageError


def check_page(path: Path, workloads: Iterable[str]) -> None:
    """Check that results can be written into a page, before they are measured for minutes.

    Raises:
        UsageError: If it cannot be read, or has no place for a workload.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"hedged-pubsub bench: error: --report must be a page that exists: {error}"
        ) from error
    for workload in workloads:
        begin, end = _markers(workload)
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise UsageError(
                f"hedged-pubsub bench: error: --report {str(path)!r} must have the lines {begin!r} "
                f"and {end!r}, once each: the results go in between"
            )


def write_page(path: Path, setup: Setup, tables: Iterable[Table]) -> None:
    """Write tables into the places of their workloads; the rest of the page stays as it is.

    Each place says when and where it was measured: a later run may measure only some of them.

    Raises:
        OSError: If the page cannot be written.
    """
    by_workload: dict[str, list[Table]] = {}
    for table in tables:
        by_workload.setdefault(table.workload, []).append(table)
    text = path.read_text(encoding="utf-8")
    for workload, of_workload in by_workload.items():
        begin, end = _markers(workload)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        parts = [*map(_markdown, of_workload), setup.in_words()]
        text = "\n\n".join([before + begin, *parts, end + after])
    path.write_text(text, encoding="utf-8")


def _markers(workload: str) -> tuple[str, str]:
    return f"<!-- bench: {workload} -->", f"<!-- end of bench: {workload} -->"


def _markdown(table: Table) -> str:
    rule = ["---", *("--:" for _ in table.header[1:])]
    lines = [" | ".join(cells) for cells in (table.header, rule, *table.rows)]
    return "\n".join([f"**{table.title}**", "", *(f"| {line} |" for line in lines)])
