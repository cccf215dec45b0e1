"""The results as figures (needs ``matplotlib``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hedged_pubsub.cli.bench.tails import TailRow
from hedged_pubsub.cli.bench.throughput import ThroughputRow
from hedged_pubsub.cli.plot import label_axes, survival

_OFFICIAL: Final = "tab:red"
_HEDGED: Final = "tab:blue"
_BEST: Final = "tab:green"
# Small files; the page is read on a screen.
_DPI: Final = 90


def draw_throughput(path: Path, rows: Sequence[ThroughputRow]) -> None:
    """Draw messages per second over the batch size, one panel a target.

    Raises:
        OSError: If the file cannot be written.
    """
    targets = list(dict.fromkeys(row.target for row in rows))
    sizes = list(dict.fromkeys(row.size for row in rows))
    figure = Figure(figsize=(4.5 * len(targets), 4), layout="constrained")
    panels = figure.subplots(1, len(targets), squeeze=False, sharey=True)[0]
    for axes, target in zip(panels, targets, strict=True):
        for size, style in zip(sizes, ("-", "--", ":", "-.") * len(sizes), strict=False):
            of_line = [row for row in rows if (row.target, row.size) == (target, size)]
            batches = [row.batch for row in of_line]
            for name, colour, rates in (
                ("official", _OFFICIAL, [row.official_per_second for row in of_line]),
                ("hedged", _HEDGED, [row.hedged_per_second for row in of_line]),
            ):
                label = f"{name}, {size:,} bytes"
                axes.plot(batches, rates, style, marker="o", color=colour, label=label)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(_whole))
        axes.yaxis.set_major_formatter(FuncFormatter(_whole))
        axes.set_title(target)
        axes.set_xlabel("messages a batch")
        axes.grid(visible=True, alpha=0.4)
    panels[0].set_ylabel("messages per second")
    panels[0].legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=_DPI)


def draw_tails(path: Path, rows: Sequence[TailRow]) -> None:
    """Draw the survival functions of each case's latencies, one panel a case.

    Raises:
        OSError: If the file cannot be written.
    """
    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(5 * columns, 3.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes, row in zip(panels.flat, rows, strict=False):
        for label, colour, latencies in (
            ("official", _OFFICIAL, row.official),
            ("hedged", _HEDGED, row.hedged),
            ("best possible", _BEST, row.best),
        ):
            milliseconds, share = survival(latencies)
            axes.plot(milliseconds, share, drawstyle="steps-pre", label=label, color=colour)
        axes.axvline(1000 * row.hedge_delay, color="grey", ls="--", lw=1, label="hedge delay")
        axes.set_title(row.case, fontsize="medium")
        label_axes(axes)
        axes.label_outer()
    for axes in panels.flat[len(rows) :]:
        axes.set_visible(False)
    panels[0][0].legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=_DPI)


def _whole(value: float, _position: int) -> str:
    return f"{value:,.0f}"
