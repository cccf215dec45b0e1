"""``hedged-pubsub plan``: reads, replays, recommends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import wrap_file

from hedged_pubsub._core.hedge_delay import HedgeDelay
from hedged_pubsub.cli.arguments import PlanOptions
from hedged_pubsub.cli.measures import PERCENTILES, milliseconds, nearest_rank
from hedged_pubsub.cli.plan.reading import read_samples
from hedged_pubsub.cli.plan.recommendation import (
    Plan,
    choose_delays,
    make_plan,
    percent,
    predict_all,
    short_milliseconds,
)
from hedged_pubsub.cli.plan.samples import InputError, Samples
from hedged_pubsub.cli.plan.simulation import Prediction, Trace
from hedged_pubsub.cli.report import RefusedError, Report, Table, progress_bars, save

_PERCENTILES: Final = ("p50", "p90", "p95", "p99", "p99.9", "p99.99")


def run_plan(options: PlanOptions) -> None:
    """Make a plan and show it; raise CommandError if that cannot be done."""
    name = "the standard input" if options.source == Path("-") else str(options.source)
    try:
        samples = _read(options)
    except InputError as error:
        raise RefusedError(f"{name}: {error}") from error
    except OSError as error:
        raise RefusedError(f"cannot read {name}: {error.strerror or error}") from error
    trace = Trace(samples.latencies, rate=options.rate, seed=options.reading.seed)
    predictions = _predict(options, trace)
    plan = make_plan(trace, predictions, budget=options.budget, in_order=samples.in_order)
    plan_report(samples, trace, plan, budget=options.budget).show(as_json=options.json)
    if (path := options.plot) is not None:
        from hedged_pubsub.cli.plots import draw_plan

        draw = partial(draw_plan, path, trace, plan, budget=options.budget)
        save("Latencies and costs drawn", path, draw)


def _read(options: PlanOptions) -> Samples:
    is_piped = options.source == Path("-")
    source = sys.stdin.fileno() if is_piped else options.source
    with open(source, "rb", closefd=not is_piped) as stream:
        size, console = os.fstat(stream.fileno()).st_size, Console(stderr=True)
        if not size or not console.is_terminal:  # a pipe has no size
            return read_samples(stream, options.reading)
        # It vanishes, since most inputs are read at once.
        with wrap_file(stream, size, description="reading", console=console, transient=True) as it:
            return read_samples(it, options.reading)


def _predict(options: PlanOptions, trace: Trace) -> tuple[Prediction, ...]:
    delays: list[float | HedgeDelay] = [*(options.hedge_delays or choose_delays(trace))]
    if options.percentile_delay is not None:
        delays.append(options.percentile_delay)
    with progress_bars() as progress:
        bar = progress.add_task("settings", total=len(delays) * len(options.refill_ratios))
        return predict_all(
            trace,
            delays=delays,
            refill_ratios=options.refill_ratios,
            max_tokens=options.max_tokens,
            tick=lambda: progress.advance(bar),
        )


def plan_report(samples: Samples, trace: Trace, plan: Plan, *, budget: float) -> Report:
    """Return what is shown: a row for each setting, the recommendation, what to be wary of."""
    warnings = (*samples.notes, *plan.warnings)
    data = {
        "source": samples.source,
        "samples": len(trace),
        "skipped": samples.skipped,
        "rate": trace.rate,
        "budget_pct": 100 * budget,
        "without": milliseconds(trace.recorded, *_PERCENTILES),
        "settings": [_row(prediction) for prediction in plan.predictions],
        "recommended": None if plan.recommended is None else _row(plan.recommended),
        "reason": plan.reason,
        "warnings": warnings,
    }
    table = Table(
        title=f"{len(trace):,} requests, hedged: latency in milliseconds",
        header=("delay", "refill ratio", *_PERCENTILES, "extra", "slower"),
        rows=[("none", "", *_cells(trace.recorded), "0 %", ""), *_table_rows(plan.predictions)],
    )
    words = "\n".join((plan.reason, *(f"Note: {warning}" for warning in warnings)))
    return Report(data=data, tables=(table,), words=words)


def _row(prediction: Prediction) -> Mapping[str, Any]:
    """Return what one setting would have done; shares are in percent of the requests."""
    settings = prediction.settings
    delay = settings.hedge_delay
    return {
        **milliseconds(prediction.latencies, *_PERCENTILES),
        "hedge_delay_s": settings.initial_hedge_delay,
        "percentile": delay.fraction if isinstance(delay, HedgeDelay) else None,
        "max_tokens": settings.max_tokens,
        "refill_ratio": settings.refill_ratio,
        "extra_requests_pct": round(100 * prediction.extra_requests, 4),
        "slower_pct": round(100 * prediction.slower, 4),
        "suppressed_pct": round(100 * prediction.suppressed, 4),
    }


def _table_rows(predictions: Sequence[Prediction]) -> Iterator[Sequence[str]]:
    """Yield the rows; ratios that make no difference share one, and their latencies."""
    for _, same in groupby(predictions, key=lambda one: id(one.latencies)):
        first, *others = same
        delay = first.settings.hedge_delay
        yield (
            f"p{100 * delay.fraction:g}" if isinstance(delay, HedgeDelay) else f"{delay:g} s",
            # These are the largest ones: from some ratio on, none makes a difference any more.
            f"{'≥' if others else ''}{first.settings.refill_ratio:g}",
            *_cells(first.latencies),
            percent(first.extra_requests),
            percent(first.slower),
        )


def _cells(latencies: Sequence[float]) -> list[str]:
    return [short_milliseconds(nearest_rank(latencies, PERCENTILES[name])) for name in _PERCENTILES]
