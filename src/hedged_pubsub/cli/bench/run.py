"""``hedged-pubsub bench``: runs the workloads and shows the results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hedged_pubsub._options import DISABLE_VARIABLE, is_switched_off
from hedged_pubsub.cli.bench.arguments import EMULATOR, SERVER, BenchOptions
from hedged_pubsub.cli.bench.latency import SETTINGS, LatencyRow, measure_latency
from hedged_pubsub.cli.bench.memory import (
    EnduranceRow,
    HeldRow,
    measure_endurance,
    measure_held,
)
from hedged_pubsub.cli.bench.page import check_page, write_page
from hedged_pubsub.cli.bench.results import Results
from hedged_pubsub.cli.bench.setup import this_setup
from hedged_pubsub.cli.bench.tables import tables
from hedged_pubsub.cli.bench.tails import TailRow, cases, measure_tail
from hedged_pubsub.cli.bench.targets import emulator_is_installed, running_target
from hedged_pubsub.cli.bench.throughput import ThroughputRow, fits, measure_throughput
from hedged_pubsub.cli.extras import check_extras
from hedged_pubsub.cli.values import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress


def run_bench(options: BenchOptions) -> int:
    """Measure what was asked for and show it; returns the exit code.

    Raises:
        UsageError: If something that the options need is missing, or the environment switches
            hedging off.
        MeasurementError: If a publish fails, or what was measured cannot be right.
    """
    check_extras("bench", plots=options.report is not None)
    if is_switched_off():
        raise UsageError(
            f"hedged-pubsub bench: error: {DISABLE_VARIABLE} is set, which switches hedging off;"
            " unset it to see a difference"
        )
    if options.report is not None:
        check_page(options.report, options.workloads)
    targets = options.targets or _default_targets(options)
    from hedged_pubsub.cli import table

    setup = this_setup()
    with table.progress_bars() as progress:
        throughput, latency = _on_targets(options, targets, progress)
        held, endurance = _memory(options, progress)
        tails = _tails(options, progress)
    results = Results(
        setup=setup,
        throughput=throughput,
        latency=latency,
        held=held,
        endurance=endurance,
        tails=tails,
    )
    if options.json:
        print(results.to_json(), flush=True)
    else:
        table.print_tables(
            [(one.title, one.header, one.rows) for one in tables(results)], setup.in_words()
        )
    return 0 if options.report is None else _write(options.report, results)


def _default_targets(options: BenchOptions) -> tuple[str, ...]:
    if emulator_is_installed():
        return (EMULATOR, SERVER)
    if {"throughput", "latency"} & set(options.workloads):
        print(
            "Google's emulator is not installed here: only the project's own server is measured",
            file=sys.stderr,
        )
    return (SERVER,)


def _on_targets(
    options: BenchOptions, targets: tuple[str, ...], progress: Progress
) -> tuple[tuple[ThroughputRow, ...], tuple[LatencyRow, ...]]:
    cells = [
        (size, batch) for size in options.sizes for batch in options.batches if fits(batch, size)
    ]
    throughput: list[ThroughputRow] = []
    latency: list[LatencyRow] = []
    if not {"throughput", "latency"} & set(options.workloads):
        return (), ()
    for name in targets:
        with running_target(name) as target:
            if "throughput" in options.workloads:
                tick = _bar(progress, f"throughput, {name}", 2 * options.repeats * len(cells))
                throughput += [
                    measure_throughput(
                        target,
                        batch=batch,
                        size=size,
                        seconds=options.seconds,
                        repeats=options.repeats,
                        tick=tick,
                    )
                    for size, batch in cells
                ]
            if "latency" in options.workloads:
                tick = _bar(progress, f"latency, {name}", 2 * options.repeats * len(SETTINGS))
                latency += [
                    measure_latency(
                        target,
                        settings=settings,
                        seconds=options.seconds,
                        repeats=options.repeats,
                        tick=tick,
                    )
                    for settings in SETTINGS
                ]
    return tuple(throughput), tuple(latency)


def _memory(
    options: BenchOptions, progress: Progress
) -> tuple[tuple[HeldRow, ...], tuple[EnduranceRow, ...]]:
    if "memory" not in options.workloads:
        return (), ()
    share = 10 if options.quick else 1
    tick = _bar(progress, "memory", 10)
    held = (
        measure_held(messages=10_000 // share, batch=100, tick=tick),
        measure_held(messages=2_000 // share, batch=1, tick=tick),
    )
    return held, (measure_endurance(batches=20_000 // share, tick=tick),)


def _tails(options: BenchOptions, progress: Progress) -> tuple[TailRow, ...]:
    if "tails" not in options.workloads:
        return ()
    duration, rate = (2.0, 100.0) if options.quick else (20.0, 200.0)
    all_cases = cases(options.seed, duration=duration)
    tick = _bar(progress, "tails", 2 * len(all_cases))
    return tuple(
        measure_tail(case, publishes=round(duration * rate), rate=rate, tick=tick)
        for case in all_cases
    )


def _bar(progress: Progress, name: str, total: int) -> Callable[[], None]:
    bar = progress.add_task(name, total=total)
    return lambda: progress.advance(bar)


def _write(page: Path, results: Results) -> int:
    from hedged_pubsub.cli.bench import figures

    try:
        write_page(page, results.setup, tables(results))
        images = page.parent / "images"
        images.mkdir(exist_ok=True)
        if results.throughput:
            figures.draw_throughput(images / "bench-throughput.png", results.throughput)
        if results.tails:
            figures.draw_tails(images / "bench-tails.png", results.tails)
    except OSError as error:
        print(f"hedged-pubsub bench: error: cannot write the report: {error}", file=sys.stderr)
        return 1
    print(f"Results written into {page}, figures into {images}", file=sys.stderr)
    return 0
