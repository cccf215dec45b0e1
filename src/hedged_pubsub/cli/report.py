"""What the commands show: tables or JSON on stdout, progress and notes on stderr, files."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hedged_pubsub.cli.measures import nearest_rank

if TYPE_CHECKING:
    from rich.progress import Progress

# Sends later than this are the machine's doing, not the clients': a tenth of the smallest hedge
# delay, so that what lies below cannot change what a table shows.
_LATE: Final = 0.01


class CommandError(Exception):
    """The command failed while it ran; the message is one line."""

    exit_code: ClassVar = 1


class RefusedError(CommandError):
    """The command cannot start: something that it needs is missing, or cannot be used."""

    exit_code: ClassVar = 2


class MeasurementError(CommandError):
    """What was measured cannot be shown: a publish failed, did not end, or was not stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    section_after: int = 0  # rows above a rule
    workload: str = ""  # whose part of a benchmark's page it belongs to
    keys: int = 1  # columns that say what a row is about

    def parts(self, width: int) -> list[list[int]]:
        """Return the columns of each table that fits into so many characters, keys repeated."""
        widths = [
            3 + max(map(len, [*name.split(), *(row[number] for row in self.rows)]), default=0)
            for number, name in enumerate(self.header)
        ]
        keys = list(range(self.keys))
        left = width - 1 - sum(widths[: self.keys])
        parts: list[list[int]] = [[]]
        for column in range(self.keys, len(widths)):
            if parts[-1] and sum(widths[one] for one in [*parts[-1], column]) > left:
                parts.append([])
            parts[-1].append(column)
        return [keys + part for part in parts]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything that a command found: data for ``--json``, tables and words for readers."""

    data: Mapping[str, Any]
    tables: Sequence[Table]
    words: str

    def show(self, *, as_json: bool) -> None:
        """Print it to stdout: as one JSON object on one line, or as tables and words."""
        if as_json:
            print(json.dumps(self.data, default=dataclasses.asdict), flush=True)
            return
        from rich.console import Console
        from rich.table import Table as TerminalTable

        console = Console(file=sys.stdout, highlight=False)
        for table in self.tables:
            title = table.title
            for columns in table.parts(console.width):
                shown = TerminalTable(title=title, title_justify="left")
                for number in columns:
                    # Words are broken between them, never within.
                    least = max(map(len, table.header[number].split()), default=0)
                    justify: Any = "right" if number else "left"
                    shown.add_column(table.header[number], justify=justify, min_width=least)
                for number, row in enumerate(table.rows, 1):
                    cells = (row[column] for column in columns)
                    shown.add_row(*cells, end_section=number == table.section_after)
                console.print(shown)
                title = ""
        console.print(self.words)


def check_extras(*, plots: bool) -> None:
    """Raise RefusedError unless what results are shown with is installed."""
    needed = [("rich", "cli")] + ([("matplotlib", "plot")] if plots else [])
    missing = [(module, extra) for module, extra in needed if not importlib.util.find_spec(module)]
    if missing:
        raise RefusedError(
            f"not installed: {', '.join(module for module, _ in missing)};"
            f" run: pip install 'hedged-pubsub[{','.join(extra for _, extra in missing)}]'"
        )


def check_hedging_is_on() -> None:
    """Raise RefusedError if the environment switches hedging off."""
    from hedged_pubsub._google import options  # which imports gRPC

    if options.is_switched_off():
        name = options.DISABLE_VARIABLE
        raise RefusedError(f"{name} is set, which switches hedging off; unset it to compare")


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show progress bars on stderr, so that stdout holds the result alone."""
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description:<24}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # Each refresh takes the interpreter for some milliseconds from the clients that are measured.
    bars = progress.Progress(*columns, console=console, refresh_per_second=3)
    # Elsewhere they are never shown; older releases end even those that are disabled with a line.
    with bars if console.is_terminal else nullcontext():
        yield bars


def note_lateness(lateness: Sequence[float]) -> None:
    """Say so on stderr if more than one send in a hundred was late, by some seconds."""
    p99 = nearest_rank(sorted(lateness), 9_900)
    if p99 > _LATE:
        note = (
            f"This machine did not keep the schedule: 1 % of the sends were {1000 * p99:,.0f} ms"
            " late or more, which is part of the latencies above. On a quieter machine, or with a"
            " lower --rate, only the clients' part remains."
        )
        print(note, file=sys.stderr)


def save(what: str, path: Path, write: Callable[[], object]) -> None:
    """Write a file, and say on stderr what went into which; raise CommandError if that fails."""
    try:
        write()
    except OSError as error:
        raise CommandError(f"cannot write {str(path)!r}: {error}") from error
    print(f"{what} into {path}", file=sys.stderr)


def in_words(count: int, one: str, many: str) -> str:
    """Return a count with the noun, and verb, that belongs to it."""
    return f"{count:,} {one if count == 1 else many}"
