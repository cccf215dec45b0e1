"""The figures of the demo, the benchmark and the plan (needs ``matplotlib``)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from hedged_pubsub._core.hedge_delay import HedgeDelay
from hedged_pubsub.cli.demo import Answers, FrozenRun
from hedged_pubsub.cli.measures import PERCENTILES, Pair, nearest_rank, survival
from hedged_pubsub.cli.plan.recommendation import Plan
from hedged_pubsub.cli.plan.simulation import Prediction, Trace

_OFFICIAL: Final = "tab:red"
_HEDGED: Final = "tab:blue"
_BEST: Final = "tab:green"
_OTHERS: Final = "tab:grey"
_DASHED: Final[dict[str, Any]] = {"color": "grey", "ls": "--", "lw": 1}
_P99_9: Final = PERCENTILES["p99.9"]

# What has no answer is drawn above all that has, where it cannot be taken for one.
_ABOVE: Final = 2.5
_TICKS: Final = {0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s"}


def _time_tick(milliseconds: float, _: object) -> str:
    return f"{milliseconds / 1000:g} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"


def _draw_curve(axes: Axes, latencies: Sequence[float], label: str, color: str, **how: Any) -> None:
    """Draw the survival function of latencies, which are in seconds."""
    axes.plot(*survival(latencies), drawstyle="steps-pre", label=label, color=color, **how)


def _label_axes(axes: Axes) -> None:
    """Make axes those of a survival function: logarithmic, with units that people read."""
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("latency, counted from the scheduled send time")
    axes.set_ylabel("share of publishes at least this slow")
    axes.xaxis.set_major_formatter(FuncFormatter(_time_tick))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="major", alpha=0.4)
    axes.grid(visible=True, which="minor", alpha=0.15)


# Each public function raises OSError if the file cannot be written; its suffix names the format.


def draw_demo(path: Path, latencies: Pair[Sequence[float]], hedge_delay: float, title: str) -> None:
    """Draw both clients' latencies; the title is a second line, on what was published."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    _draw_curve(axes, latencies.official, "PublisherClient", _OFFICIAL, lw=2)
    _draw_curve(axes, latencies.hedged, "HedgedPublisher", _HEDGED, lw=2)
    axes.axvline(1000 * hedge_delay, label=f"hedge delay ({hedge_delay:g} s)", **_DASHED)
    axes.set_title(f"Publish latency with and without hedging\n{title}")
    axes.legend(loc="lower left")
    _label_axes(axes)
    figure.savefig(path, dpi=150)


def draw_frozen(path: Path, run: FrozenRun, answers: Pair[Answers]) -> None:
    """Draw each publish as a point: when it was sent, and how long it took."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    answered = [one for one in (*answers.official, *answers.hedged) if one is not None]
    no_answer = _ABOVE * max([run.grace, *answered])
    sent = [run.since_freeze(number) for number in range(run.publishes)]
    for of_client, label, colour in (
        (answers.official, "PublisherClient", _OFFICIAL),
        (answers.hedged, "HedgedPublisher", _HEDGED),
    ):
        # Not a number is not drawn.
        latencies = [math.nan if answer is None else answer for answer in of_client]
        axes.plot(sent, latencies, "o", color=colour, ms=3.5, label=label)
        if lost := [at for at, one in zip(sent, of_client, strict=True) if one is None]:
            label = f"{label}: no answer within {run.grace:g} s of the last publish"
            axes.plot(lost, [no_answer] * len(lost), "x", color=colour, ms=4.5, label=label)
    axes.axvline(0, color="black", lw=1)
    where: dict[str, Any] = {"xy": (0, 1), "xycoords": ("data", "axes fraction")}
    beside: dict[str, Any] = {"xytext": (-6, -6), "textcoords": "offset points"}
    text = "the server is gone" if run.outage else "the connection freezes"
    axes.annotate(text, **where, **beside, ha="right", va="top")
    axes.axhline(run.hedge_delay, label=f"hedge delay ({run.hedge_delay:g} s)", **_DASHED)
    axes.set_yscale("log")
    axes.set_ylim(min(_TICKS), 2 * no_answer)
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([*_TICKS, no_answer], [*_TICKS.values(), "no answer"])
    if run.outage:
        axes.axvspan(0, run.outage, color="black", alpha=0.06)
    axes.set(xlabel=f"seconds from the {run.fault} to the publish", ylabel="latency")
    axes.set_title(
        "Publishing through an outage"
        if run.outage
        else "Publishing over a connection that freezes for good"
    )
    axes.grid(visible=True, which="major", alpha=0.4)
    axes.legend(loc="upper right", bbox_to_anchor=(1, 0.88), fontsize="small")
    figure.savefig(path, dpi=110)


def draw_throughput(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw a benchmark's messages per second over the batch size, one panel a target."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    sizes = list(dict.fromkeys(row["size"] for row in rows))
    figure = Figure(figsize=(4.5 * len(targets), 4), layout="constrained")
    panels = figure.subplots(1, len(targets), squeeze=False, sharey=True)[0]
    whole = FuncFormatter(lambda value, _: f"{value:,.0f}")
    for axes, target in zip(panels, targets, strict=True):
        for size, style in zip(sizes, ("-", "--", ":", "-.") * len(sizes), strict=False):
            line = [row for row in rows if (row["target"], row["size"]) == (target, size)]
            batches = [row["batch"] for row in line]
            for name, colour in (("official", _OFFICIAL), ("hedged", _HEDGED)):
                rates = [row[f"{name}_per_second"] for row in line]
                label = f"{name}, {size:,} bytes"
                axes.plot(batches, rates, style, marker="o", color=colour, label=label)
        axes.set(xscale="log", yscale="log", title=target, xlabel="messages a batch")
        axes.xaxis.set_major_formatter(whole)
        axes.yaxis.set_major_formatter(whole)
        axes.grid(visible=True, alpha=0.4)
    panels[0].set_ylabel("messages per second")
    panels[0].legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=90)


def draw_tails(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the latencies of a benchmark's tails, one panel a case."""
    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(5 * columns, 3.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for axes, row in zip(panels.flat, rows, strict=False):
        _draw_curve(axes, row["official"], "official", _OFFICIAL)
        _draw_curve(axes, row["hedged"], "hedged", _HEDGED)
        _draw_curve(axes, row["best"], "best possible", _BEST)
        axes.axvline(1000 * row["hedge_delay"], label="hedge delay", **_DASHED)
        axes.set_title(row["case"], fontsize="medium")
        _label_axes(axes)
        axes.label_outer()
    for axes in panels.flat[len(rows) :]:
        axes.set_visible(False)
    panels[0][0].legend(loc="lower left", fontsize="small")
    figure.savefig(path, dpi=90)


def draw_plan(path: Path, trace: Trace, plan: Plan) -> None:
    """Draw the latencies that each delay would have led to, and on the right what each costs."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    curves, costs = figure.subplots(1, 2)
    _draw_latencies(curves, trace, plan)
    _draw_costs(costs, trace, plan)
    figure.savefig(path, dpi=110)


def _draw_latencies(axes: Axes, trace: Trace, plan: Plan) -> None:
    _draw_curve(axes, trace.recorded, "without hedging", _OFFICIAL, lw=2)
    best = plan.recommended
    others = [
        one
        for one in _last_of_each_delay(plan.predictions)
        if best is None or one.settings.hedge_delay != best.settings.hedge_delay
    ]
    for number, one in enumerate(others):
        style = ("-", "--", ":", "-.")[number % 4]
        # From dark to light with the delay.
        colour = to_hex(colormaps["YlOrBr"](0.95 - 0.6 * number / max(1, len(others) - 1)))
        _draw_curve(axes, one.latencies, _delay(one), colour, lw=1.2, zorder=1, ls=style)
    if best is not None:
        _draw_curve(axes, best.latencies, f"recommended: {_delay(best)}", _HEDGED, lw=2)
    axes.set_title(f"{len(trace):,} requests, recorded and hedged", fontsize="medium")
    _label_axes(axes)
    axes.set(xlabel="latency of a request", ylabel="share of requests at least this slow")
    axes.legend(loc="lower left", fontsize="small")


def _draw_costs(axes: Axes, trace: Trace, plan: Plan) -> None:
    without = 1000 * nearest_rank(trace.recorded, _P99_9)
    # On the axis, and not cut off by it.
    whole: dict[str, Any] = {"zorder": 3, "clip_on": False}
    axes.scatter([0], [without], color=_OFFICIAL, label="without hedging", **whole)
    for prediction in plan.predictions:
        lasts = prediction.settings.refill_ratio > prediction.slower
        filling = _OTHERS if lasts else "none"
        axes.scatter(*_cost(prediction), facecolors=filling, edgecolors=_OTHERS)
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": "small"}
    for prediction in _last_of_each_delay(plan.predictions):
        # A measured delay is often next to the fixed one that it came to.
        up = 12 if isinstance(prediction.settings.hedge_delay, HedgeDelay) else 0
        axes.annotate(_delay(prediction), _cost(prediction), xytext=(8, up), **beside)
    axes.scatter([], [], color=_OTHERS, label="with a setting")
    too_small = "refill ratio too small to last"
    axes.scatter([], [], facecolors="none", edgecolors=_OTHERS, label=too_small)
    if plan.recommended is not None:
        axes.scatter(*_cost(plan.recommended), color=_HEDGED, label="recommended", zorder=3, s=70)
    axes.axvline(100 * plan.budget, label="budget", **_DASHED)
    most = max([plan.budget, *(one.extra_requests for one in plan.predictions)])
    axes.set_xlim(0, 125 * most)  # with room for what is written beside the points
    axes.set(yscale="log", xlabel="extra requests", ylabel="p99.9 of the latency")
    axes.set_title("What each setting gains and costs", fontsize="medium")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.yaxis.set_major_formatter(FuncFormatter(_time_tick))
    axes.yaxis.set_minor_formatter(FuncFormatter(_time_tick))
    axes.tick_params(axis="y", which="minor", labelsize="x-small")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")


def _cost(prediction: Prediction) -> tuple[float, float]:
    return 100 * prediction.extra_requests, 1000 * nearest_rank(prediction.latencies, _P99_9)


def _last_of_each_delay(predictions: Iterable[Prediction]) -> list[Prediction]:
    return list({one.settings.hedge_delay: one for one in predictions}.values())


def _delay(prediction: Prediction) -> str:
    delay = prediction.settings.hedge_delay
    if isinstance(delay, HedgeDelay):
        return f"measured, p{100 * delay.fraction:g}"
    return f"{delay:g} s"
