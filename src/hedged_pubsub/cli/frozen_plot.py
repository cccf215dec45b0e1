"""Both clients' latencies over time, around the freeze (needs ``matplotlib``)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from hedged_pubsub.cli.frozen_report import Answers, FrozenRun

# What has no answer is drawn above all that has, where it cannot be taken for one.
_ABOVE: Final = 2.5
_TICKS: Final = {0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s"}


def draw(path: Path, run: FrozenRun, *, plain: Answers, hedged: Answers) -> None:
    """Draw each publish as a point: when it was sent, and how long it took.

    Args:
        path: The file; its suffix names the format.
        run: The schedule.
        plain: The official client's answers.
        hedged: The hedged publisher's.

    Raises:
        OSError: If the file cannot be written.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    answered = [answer for answer in (*plain, *hedged) if answer is not None]
    no_answer = _ABOVE * max([run.grace, *answered])
    for answers, label, colour in (
        (plain, "PublisherClient", "tab:red"),
        (hedged, "HedgedPublisher", "tab:blue"),
    ):
        sent = [run.since_freeze(number) for number in range(run.publishes)]
        # Not a number is not drawn.
        latencies = [math.nan if answer is None else answer for answer in answers]
        axes.plot(sent, latencies, "o", color=colour, ms=3.5, label=label)
        lost = [at for at, answer in zip(sent, answers, strict=True) if answer is None]
        if lost:
            label = f"{label}: no answer within {run.grace:g} s of the last publish"
            axes.plot(lost, [no_answer] * len(lost), "x", color=colour, ms=4.5, label=label)
    axes.axvline(0, color="black", lw=1)
    axes.annotate(
        "the connection freezes",
        xy=(0, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-6, -6),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    axes.axhline(
        run.hedge_delay,
        color="grey",
        ls="--",
        lw=1,
        label=f"hedge delay ({run.hedge_delay:g} s)",
    )
    axes.set_yscale("log")
    axes.set_ylim(min(_TICKS), 2 * no_answer)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([*_TICKS, no_answer], [*_TICKS.values(), "no answer"])
    axes.set_xlabel("seconds from the freeze to the publish")
    axes.set_ylabel("latency")
    axes.set_title("Publishing over a connection that freezes for good")
    axes.grid(visible=True, which="major", alpha=0.4)
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.88), fontsize="small")
    figure.savefig(path, dpi=110)
