"""What the commands show: tables or JSON on stdout, progress and notes on stderr, files."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
            shown = TerminalTable(title=table.title, title_justify="left")
            for number, name in enumerate(table.header):
                shown.add_column(name, justify="right" if number else "left")
            for number, row in enumerate(table.rows, 1):
                shown.add_row(*row, end_section=number == table.section_after)
            console.print(shown)
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
    # Each refresh takes the interpreter for some milliseconds from the clients that are measured.
    with progress.Progress(*columns, console=Console(stderr=True), refresh_per_second=3) as bars:
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
