"""``hedged-pubsub plan``: reads, replays, recommends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import BinaryIO

from hedged_pubsub.cli.drawing import drawn
from hedged_pubsub.cli.extras import check_extras
from hedged_pubsub.cli.plan.arguments import PlanOptions
from hedged_pubsub.cli.plan.reading import read_samples
from hedged_pubsub.cli.plan.recommendation import Plan, choose_delays, make_plan, predict_all
from hedged_pubsub.cli.plan.report import make_report, table, words
from hedged_pubsub.cli.plan.samples import InputError, Samples
from hedged_pubsub.cli.plan.simulation import Prediction, Trace
from hedged_pubsub.cli.values import UsageError
from hedged_pubsub.hedge_delay import HedgeDelay


def run_plan(options: PlanOptions) -> int:
    """Make a plan and show it; returns the exit code.

    Raises:
        UsageError: If the input cannot be used, or an extra that the options need is missing.
    """
    check_extras("plan", plots=options.plot is not None)
    from hedged_pubsub.cli import table as terminal

    name = "the standard input" if options.source is None else str(options.source)
    try:
        samples = _read(options)
    except InputError as error:
        raise UsageError(f"hedged-pubsub plan: error: {name}: {error}") from error
    except OSError as error:
        raise UsageError(
            f"hedged-pubsub plan: error: cannot read {name}: {error.strerror or error}"
        ) from error
    trace = Trace(samples.latencies, rate=options.rate, seed=options.reading.seed)
    plan = make_plan(
        trace, _predict(options, trace), budget=options.budget, in_order=samples.in_order
    )
    report = make_report(samples, trace, plan, budget=options.budget)
    if options.json:
        print(report.to_json(), flush=True)
    else:
        terminal.print_tables([table(trace, plan.predictions)], words(report))
    return _plot(options, trace, plan)


def _read(options: PlanOptions) -> Samples:
    if options.source is None:
        return _read_stream(options, sys.stdin.buffer, size=None)
    with options.source.open("rb") as stream:
        return _read_stream(options, stream, size=os.fstat(stream.fileno()).st_size or None)


def _read_stream(options: PlanOptions, stream: BinaryIO, size: int | None) -> Samples:
    from hedged_pubsub.cli import table as terminal

    advance: Callable[[], object] | None = None
    with ExitStack() as stack:

        def on_progress() -> None:
            # The bar comes with the first report: a short input, or one line about a wrong one,
            # needs none.
            nonlocal advance
            if advance is None:
                progress = stack.enter_context(terminal.progress_bars())
                bar = progress.add_task("reading, bytes", total=size)
                advance = lambda: progress.update(  # noqa: E731
                    bar, completed=stream.tell() if size else 0
                )
            advance()

        return read_samples(stream, options.reading, on_progress)


def _predict(options: PlanOptions, trace: Trace) -> tuple[Prediction, ...]:
    from hedged_pubsub.cli import table as terminal

    delays: list[float | HedgeDelay] = [*(options.hedge_delays or choose_delays(trace))]
    if options.measured is not None:
        delays.append(options.measured)
    with terminal.progress_bars() as progress:
        bar = progress.add_task("settings", total=len(delays) * len(options.refill_ratios))
        return predict_all(
            trace,
            delays=delays,
            refill_ratios=options.refill_ratios,
            max_tokens=options.max_tokens,
            tick=lambda: progress.advance(bar),
        )


def _plot(options: PlanOptions, trace: Trace, plan: Plan) -> int:
    if options.plot is None:
        return 0
    from hedged_pubsub.cli.plan.figure import draw_plan

    draw = partial(draw_plan, options.plot, trace, plan, budget=options.budget)
    return drawn("plan", "Latencies and costs", options.plot, draw)
