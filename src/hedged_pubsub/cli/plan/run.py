"""``hedged-pubsub plan``: reads, replays, recommends."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hedged_pubsub._core.hedge_delay import HedgeDelay
from hedged_pubsub.cli.arguments import PlanOptions
from hedged_pubsub.cli.measures import PERCENTILES, milliseconds, nearest_rank
from hedged_pubsub.cli.plan.distribution import samples_of_percentiles
from hedged_pubsub.cli.plan.reading import read_samples
from hedged_pubsub.cli.plan.recommendation import (
    RESAMPLES,
    Plan,
    choose_delays,
    expectations,
    make_plan,
    percent,
    predict_all,
    short_milliseconds,
)
from hedged_pubsub.cli.plan.samples import InputError, Samples
from hedged_pubsub.cli.plan.simulation import Prediction, Trace
from hedged_pubsub.cli.report import RefusedError, Report, Table, progress_bars, save

if TYPE_CHECKING:
    from rich.progress import Progress

_RATE: Final = 100.0
_PERCENTILES: Final = ("p50", "p90", "p95", "p99", "p99.9", "p99.99")


def run_plan(options: PlanOptions) -> None:
    """Make a plan and show it; raise CommandError if that cannot be done."""
    samples = _read(options)
    rate = options.rate or samples.rate or _RATE
    trace = Trace(samples.latencies, rate=rate, seed=options.seed)
    with progress_bars() as progress:
        plan = _make_plan(options, samples, trace, progress)
    costs = list(
        expectations(plan, rate=rate, request_bytes=options.request_bytes, price=options.price)
    )
    plan_report(samples, trace, plan, costs).show(as_json=options.json)
    if (path := options.plot) is not None:
        from hedged_pubsub.cli.plots import draw_plan

        save("Latencies and costs drawn", path, partial(draw_plan, path, trace, plan))


def _read(options: PlanOptions) -> Samples:
    if options.source is None:
        try:
            return samples_of_percentiles(options.percentiles, options.reading)
        except InputError as error:
            raise RefusedError(str(error)) from error
    is_piped = options.source == Path("-")
    name = "the standard input" if is_piped else str(options.source)
    try:
        source = sys.stdin.fileno() if is_piped else options.source
        with open(source, "rb", closefd=not is_piped) as stream:
            return read_samples(stream, options.reading)
    except InputError as error:
        raise RefusedError(f"{name}: {error}") from error
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise RefusedError(f"cannot read {name}: {getattr(error, 'strerror', error)}") from error


def _make_plan(options: PlanOptions, samples: Samples, trace: Trace, progress: Progress) -> Plan:
    delays: list[float | HedgeDelay] = [*(options.hedge_delays or choose_delays(trace))]
    if options.percentile_delay is not None:
        delays.append(options.percentile_delay)
    bar = progress.add_task("settings", total=len(delays) * len(options.refill_ratios))
    predictions = predict_all(
        trace,
        delays=delays,
        refill_ratios=options.refill_ratios,
        max_tokens=options.max_tokens,
        tick=lambda: progress.advance(bar),
    )
    bar = progress.add_task("resampled", total=RESAMPLES)
    return make_plan(
        trace,
        predictions,
        budget=options.budget,
        in_order=samples.in_order,
        seed=options.seed,
        tick=lambda: progress.advance(bar),
    )


def plan_report(samples: Samples, trace: Trace, plan: Plan, costs: Sequence[str] = ()) -> Report:
    """Return what is shown: a row for each setting, the recommendation, what to be wary of."""
    warnings = (*samples.notes, *plan.warnings)
    data = {
        "source": samples.source,
        "samples": len(trace),
        "skipped": samples.skipped,
        "rate": trace.rate,
        "budget_pct": 100 * plan.budget,
        "without": milliseconds(trace.recorded, *_PERCENTILES),
        "settings": [_row(prediction) for prediction in plan.predictions],
        "recommended": None if plan.recommended is None else _row(plan.recommended),
        "p99_9_range_ms": plan.p99_9_range and [round(1000 * one, 3) for one in plan.p99_9_range],
        "near_miss": None if plan.near_miss is None else _row(plan.near_miss),
        "reason": plan.reason,
        "expect": costs,
        "warnings": warnings,
    }
    table = Table(
        title=f"{len(trace):,} requests, hedged: latency in milliseconds",
        header=("delay", "refill ratio", *_PERCENTILES, "extra", "slower"),
        rows=[("none", "", *_cells(trace.recorded), "0 %", ""), *_table_rows(plan.predictions)],
        keys=2,
    )
    notes = (f"Note: {warning}" for warning in warnings)
    words = "\n".join((plan.reason, *(f"* {one}" for one in costs), *notes))
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
            f"{first.settings.refill_ratio:g}{'+' if others else ''}",
            *_cells(first.latencies),
            percent(first.extra_requests),
            percent(first.slower),
        )


def _cells(latencies: Sequence[float]) -> list[str]:
    return [short_milliseconds(nearest_rank(latencies, PERCENTILES[name])) for name in _PERCENTILES]
