"""Both latency curves in one figure (needs ``matplotlib``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter


def survival(latencies: Sequence[float]) -> tuple[list[float], list[float]]:
    """The survival function: for each latency, the share of publishes at least that slow.

    "At least" rather than "more than": the slowest publish then has a share above zero, which a
    logarithmic axis can show.

    Args:
        latencies: Seconds.

    Returns:
        Milliseconds in rising order, and the share that belongs to each, from 1 down to
        1 / ``len(latencies)``.
    """
    ordered = sorted(latencies)
    count = len(ordered)
    return [1000 * value for value in ordered], [(count - rank) / count for rank in range(count)]


def draw(
    path: Path, *, plain: Sequence[float], hedged: Sequence[float], hedge_delay: float, title: str
) -> None:
    """Draw the survival functions of both clients' latencies on log-log axes into a file.

    Args:
        path: The file; its suffix names the format.
        plain: The official client's latencies in seconds.
        hedged: The hedged publisher's latencies in seconds.
        hedge_delay: Seconds; marked by a vertical line.
        title: What was published, for the second title line.

    Raises:
        OSError: If the file cannot be written.
    """
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for latencies, label, colour in (
        (plain, "PublisherClient", "tab:red"),
        (hedged, "HedgedPublisher", "tab:blue"),
    ):
        milliseconds, share = survival(latencies)
        axes.plot(milliseconds, share, drawstyle="steps-pre", label=label, color=colour, lw=2)
    axes.axvline(
        1000 * hedge_delay, color="grey", ls="--", lw=1, label=f"hedge delay ({hedge_delay:g} s)"
    )
    axes.set_title(f"Publish latency with and without hedging\n{title}")
    axes.legend(loc="lower left")
    label_axes(axes)
    figure.savefig(path, dpi=150)


def label_axes(axes: Axes) -> None:
    """Make axes those of a survival function: logarithmic, with units that people read."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("latency, counted from the scheduled send time")
    axes.set_ylabel("share of publishes at least this slow")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _duration(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="major", alpha=0.4)
    axes.grid(visible=True, which="minor", alpha=0.15)


def _duration(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:g} s"
    return f"{milliseconds:g} ms"
