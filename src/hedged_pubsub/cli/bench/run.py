"""``hedged-pubsub bench``: runs the workloads and shows the results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from hedged_pubsub.cli.arguments import BenchOptions
from hedged_pubsub.cli.bench import scenarios
from hedged_pubsub.cli.bench.jobs import BATCH_SETTINGS, MeasuringProcess, fits
from hedged_pubsub.cli.bench.results import Results, check_page, make_report, this_setup, write_page
from hedged_pubsub.cli.bench.scenarios import Row, Tick, running_target
from hedged_pubsub.cli.clients import Client
from hedged_pubsub.cli.report import Report, check_hedging_is_on, progress_bars, save
from hedged_pubsub.cli.values import EMULATOR, SERVER
from hedged_pubsub.testing.emulator import EmulatorNotInstalledError, find_emulator

# Adds a progress bar of a name and a total; returns what moves it by one.
_Bar = Callable[[str, int], Tick]


def run_bench(options: BenchOptions) -> None:
    """Measure what was asked for and show it; raise CommandError if that cannot be done."""
    check_hedging_is_on()
    if options.report is not None:
        check_page(options.report, options.workloads)
    setup = this_setup()
    with progress_bars() as progress:

        def bar(name: str, total: int) -> Tick:
            task = progress.add_task(name, total=total)
            return lambda: progress.advance(task)

        results = _measure(options, bar)
    report = make_report(setup, results)
    report.show(as_json=options.json)
    if (page := options.report) is not None:
        save("Results and figures written", page, lambda: _write(page, report, results))


def _measure(options: BenchOptions, bar: _Bar) -> Results:
    results: dict[str, list[Row]] = {
        name: [] for name in ("throughput", "latency", "held", "endurance", "tails")
    }
    on_targets = {"throughput", "latency"} & set(options.workloads)
    for name in (options.targets or _default_targets()) if on_targets else ():
        _measure_target(name, options, results, bar)
    if "memory" in options.workloads:
        tick, share = bar("memory", 10), 10 if options.quick else 1
        results["held"] += (
            scenarios.measure_held(messages=messages // share, batch=batch, tick=tick)
            for messages, batch in ((10_000, 100), (2_000, 1))
        )
        results["endurance"].append(scenarios.measure_endurance(batches=20_000 // share, tick=tick))
    if "tails" in options.workloads:
        duration, rate = (2.0, 100.0) if options.quick else (20.0, 200.0)
        cases = scenarios.cases(options.seed, duration=duration)
        tick, publishes = bar("tails", 2 * len(cases)), round(duration * rate)
        results["tails"] += (
            scenarios.measure_tail(case, script, publishes=publishes, rate=rate, tick=tick)
            for case, script in cases.items()
        )
    return results


def _measure_target(
    name: str, options: BenchOptions, results: dict[str, list[Row]], bar: _Bar
) -> None:
    with running_target(name) as target, MeasuringProcess() as official, MeasuringProcess() as ours:
        turns = scenarios.Turns(
            target=target,
            processes={Client.OFFICIAL: official, Client.HEDGED: ours},
            seconds=options.seconds,
            repeats=options.repeats,
        )
        if "throughput" in options.workloads:
            cells = [(b, s) for s in options.sizes for b in options.batches if fits(b, s)]
            tick = bar(f"throughput, {name}", 2 * options.repeats * len(cells))
            results["throughput"] += (
                scenarios.measure_throughput(turns, batch=b, size=s, tick=tick) for b, s in cells
            )
        if "latency" in options.workloads:
            tick = bar(f"latency, {name}", 2 * options.repeats * len(BATCH_SETTINGS))
            results["latency"] += (
                scenarios.measure_latency(turns, settings=settings, tick=tick)
                for settings in BATCH_SETTINGS
            )


def _default_targets() -> tuple[str, ...]:
    try:
        find_emulator()
    except EmulatorNotInstalledError:
        note = "Google's emulator is not installed here: only the project's own server is measured"
        print(note, file=sys.stderr)
        return (SERVER,)
    return (EMULATOR, SERVER)


def _write(page: Path, report: Report, results: Results) -> None:
    from hedged_pubsub.cli import plots

    write_page(page, report)
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    if results["throughput"]:
        plots.draw_throughput(images / "bench-throughput.png", results["throughput"])
    if results["tails"]:
        plots.draw_tails(images / "bench-tails.png", results["tails"])
