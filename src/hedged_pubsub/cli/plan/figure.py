"""The plan as a figure (needs ``matplotlib``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hedged_pubsub.cli.plan.recommendation import P99_9, Plan
from hedged_pubsub.cli.plan.simulation import Latencies, Prediction, Trace
from hedged_pubsub.cli.plot import label_axes
from hedged_pubsub.hedge_delay import HedgeDelay

# Ranks that are drawn: more cannot be told apart on the paper.
_POINTS: Final = 1_000
_DPI: Final = 110


def draw_plan(path: Path, trace: Trace, plan: Plan, *, budget: float) -> None:
    """Draw what latencies and extra requests each delay would have led to, into a file.

    On the left the survival functions, of the recommended setting too; on the right the p99.9 of
    every setting over its extra requests.

    Args:
        path: The file; its suffix names the format.
        trace: What was recorded.
        plan: What was found.
        budget: The share of extra requests that is allowed.

    Raises:
        OSError: If the file cannot be written.
    """
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    curves, costs = figure.subplots(1, 2)
    _draw_curves(curves, trace, plan)
    _draw_costs(costs, trace, plan, budget)
    figure.savefig(path, dpi=_DPI)


def _draw_curves(axes: Axes, trace: Trace, plan: Plan) -> None:
    axes.plot(*_survival(trace.recorded), label="without hedging", color="tab:red", lw=2)
    best = plan.recommended and plan.recommended.settings.hedge_delay
    for number, prediction in enumerate(_last_of_each_delay(plan.predictions)):
        if prediction.settings.hedge_delay == best:
            continue  # drawn in its own colour
        axes.plot(
            *_survival(prediction.latencies),
            label=_delay(prediction),
            color="tab:grey",
            lw=1,
            zorder=1,
            ls=("-", "--", ":", "-.")[number % 4],
        )
    if plan.recommended is not None:
        axes.plot(
            *_survival(plan.recommended.latencies),
            label=f"recommended: {_delay(plan.recommended)}",
            color="tab:blue",
            lw=2,
        )
    axes.set_title(f"{len(trace):,} requests, recorded and hedged", fontsize="medium")
    label_axes(axes)
    axes.set_xlabel("latency of a request")
    axes.set_ylabel("share of requests at least this slow")
    axes.legend(loc="lower left", fontsize="small")


def _draw_costs(axes: Axes, trace: Trace, plan: Plan, budget: float) -> None:
    axes.scatter(
        [0],
        [1000 * trace.recorded.percentile(P99_9)],
        color="tab:red",
        label="without hedging",
        zorder=3,
    )
    for prediction in plan.predictions:
        dry = prediction.settings.refill_ratio <= prediction.slower
        axes.scatter(
            [100 * prediction.extra_requests],
            [1000 * prediction.latencies.percentile(P99_9)],
            facecolors="none" if dry else "tab:grey",
            edgecolors="tab:grey",
        )
    for prediction in _last_of_each_delay(plan.predictions):
        axes.annotate(
            _delay(prediction),
            (100 * prediction.extra_requests, 1000 * prediction.latencies.percentile(P99_9)),
            # A measured delay is often next to the fixed one that it came to.
            xytext=(8, 12 if isinstance(prediction.settings.hedge_delay, HedgeDelay) else 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
    axes.scatter([], [], color="tab:grey", label="with a setting")
    axes.scatter(
        [], [], facecolors="none", edgecolors="tab:grey", label="refill ratio too small to last"
    )
    if plan.recommended is not None:
        axes.scatter(
            [100 * plan.recommended.extra_requests],
            [1000 * plan.recommended.latencies.percentile(P99_9)],
            color="tab:blue",
            label="recommended",
            zorder=3,
            s=70,
        )
    axes.axvline(100 * budget, color="grey", ls="--", lw=1, label="budget")
    axes.margins(x=0.2)  # for what is written beside the points
    axes.set_yscale("log")
    axes.set_title("What each setting gains and costs", fontsize="medium")
    axes.set_xlabel("extra requests")
    axes.set_ylabel("p99.9 of the latency")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _time(value)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: _time(value)))
    axes.tick_params(axis="y", which="minor", labelsize="x-small")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")


def _last_of_each_delay(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Return the prediction of each delay with the largest refill ratio."""
    return list({one.settings.hedge_delay: one for one in predictions}.values())


def _delay(prediction: Prediction) -> str:
    delay = prediction.settings.hedge_delay
    if isinstance(delay, HedgeDelay):
        return f"measured, p{100 * delay.fraction:g}"
    return f"{delay:g} s"


def _survival(latencies: Latencies) -> tuple[list[float], list[float]]:
    """Return milliseconds, and the share at least that slow: every rank at the slow end."""
    count = len(latencies)
    # Ever closer towards the end, as the logarithmic axis is.
    left = sorted({max(1, round(count ** (1 - step / _POINTS))) for step in range(_POINTS + 1)})
    ranks = [count - number for number in reversed(left)]
    return (
        [1000 * latencies[rank] for rank in ranks],
        [(count - rank) / count for rank in ranks],
    )


def _time(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"
