"""``hedged-pubsub plan``: what it shows, and its predictions beside what is then measured."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub.cli.bench.jobs import MeasuringProcess, tail
from hedged_pubsub.cli.clients import Client
from hedged_pubsub.cli.measures import nearest_rank
from hedged_pubsub.cli.plan.recommendation import make_plan, predict_all
from hedged_pubsub.cli.plan.run import plan_report
from hedged_pubsub.cli.plan.samples import Samples
from hedged_pubsub.cli.plan.simulation import Trace
from hedged_pubsub.cli.plots import draw_plan
from hedged_pubsub.testing import FaultScript, LogNormal, Stall
from tests.system.cli.command import Command, Run


def write_requests(path: Path, count: int) -> Path:
    """Write a file of requests, 1 % of which took two seconds."""
    draw = random.Random(1)
    times = (
        2000 if draw.random() < 0.01 else 5 * draw.lognormvariate(0, 0.4) for _ in range(count)
    )
    path.write_text("\n".join(("latency_ms", *(f"{time:.3f}" for time in times))))
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of 20,000 requests."""
    return write_requests(tmp_path_factory.mktemp("plan") / "publishes.csv", 20_000)


def test_json_is_all_of_stdout_and_recommends(run: Run, recorded: Path, tmp_path: Path) -> None:
    """One object for machines, and a figure; both bars and notes go to stderr."""
    plot = tmp_path / "plan.png"
    delays = ("--hedge-delays", "0.1,1", "--percentile-delay", "0.95")
    done = run("plan", recorded, "--json", "--plot", plot, *delays)
    found = done.data()
    assert found["samples"] == 20_000
    assert found["without"]["p99_9_ms"] == 2000
    assert [row["percentile"] for row in found["settings"]] == [None] * 10 + [0.95] * 5
    assert found["recommended"]["hedge_delay_s"] == 0.1
    assert 105 < found["recommended"]["p99_9_ms"] < 115
    assert 0.8 < found["recommended"]["extra_requests_pct"] < 1.2
    assert plot.read_bytes().startswith(b"\x89PNG")
    for part in (str(plot), "reading", "15/15"):
        assert part in done.err


def test_the_standard_input_and_skipped_lines(command: Command) -> None:
    """A pipe is read like a file; what is left out is said."""
    process = command.start("plan", "-", "--json", "--malformed", "skip", stdin=subprocess.PIPE)
    out, err = process.communicate("latency_s\n0.1\nnan\n0.2\n", timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert (found["samples"], found["skipped"]) == (2, 1)
    assert any("line 3: a latency cannot be nan" in warning for warning in found["warnings"])


def test_an_input_that_cannot_be_used_is_one_line_and_exit_code_2(run: Run, tmp_path: Path) -> None:
    """The line names the file, and the line in it."""
    path = tmp_path / "latencies"
    path.write_text("latency_s\n0.1\n-1\n", encoding="utf-8")
    run("plan", path).refused("hedged-pubsub plan", str(path), "line 3")


@pytest.mark.skipif(os.name != "posix", reason="needs a device that is full")
def test_a_figure_that_cannot_be_written(run: Run, recorded: Path, tmp_path: Path) -> None:
    """The plan is printed all the same; then it is one line and exit code 1."""
    target = tmp_path / "full.png"
    target.symlink_to("/dev/full")
    done = run("plan", recorded, "--json", "--plot", target, "--hedge-delays", 1)
    assert done.code == 1
    assert json.loads(done.out)["samples"] == 20_000
    assert str(target) in done.err.splitlines()[-1]


@pytest.mark.slow
def test_many_requests_take_seconds(run: Run, tmp_path: Path) -> None:
    """Half a minute of CPU time at most; here a quarter of them, in a quarter of the time."""
    path = write_requests(tmp_path / "many.csv", 250_000)
    start = time.process_time()
    done = run("plan", path, "--json")
    assert time.process_time() - start < 7.5
    assert done.data()["recommended"]["hedge_delay_s"] == 0.1


# --- What it shows of two slow requests in a thousand: two delays fixed, one measured.

SAMPLES = Samples(
    latencies=[0.01] * 499 + [2.0] + [0.02] * 499 + [1.0],
    source="'latency_s' in s",
    skipped=3,
    notes=("A note about them.",),
)
TRACE = Trace(SAMPLES.latencies, rate=50, seed=1)
DELAYS: list[float | HedgeDelay] = [0.1, 0.5, HedgeDelay.percentile(0.95)]
PREDICTIONS = predict_all(
    TRACE, delays=DELAYS, refill_ratios=[0.001, 0.1], max_tokens=1, tick=lambda: None
)
PLAN = make_plan(TRACE, PREDICTIONS, budget=0.05, in_order=True)


def test_json_and_table_have_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios that predict the same share a row of the table; the first row is without hedging."""
    report = plan_report(SAMPLES, TRACE, PLAN, budget=0.05)
    report.show(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["samples"], found["skipped"]) == (SAMPLES.source, 1000, 3)
    assert (found["rate"], found["budget_pct"]) == (50, 5)
    fast = dict.fromkeys(("p50_ms", "p90_ms", "p95_ms", "p99_ms"), 20)
    assert found["without"] == {**fast, "p99_9_ms": 1000, "p99_99_ms": 2000}
    keys = ("hedge_delay_s", "percentile", "refill_ratio", "max_tokens")
    assert [tuple(row[key] for key in keys) for row in found["settings"]] == [
        (delay, percentile, ratio, 1)
        for delay, percentile in ((0.1, None), (0.5, None), (1.0, 0.95))
        for ratio in (0.001, 0.1)
    ]
    recommended = found["recommended"]
    assert recommended in found["settings"]
    assert (recommended["hedge_delay_s"], recommended["refill_ratio"]) == (0.1, 0.1)
    assert recommended["extra_requests_pct"] == recommended["slower_pct"] == 0.2
    assert recommended["suppressed_pct"] == 0
    assert 110 <= recommended["p99_9_ms"] <= 120
    assert found["reason"] == PLAN.reason
    assert found["warnings"] == [*SAMPLES.notes, *PLAN.warnings]

    (table,) = report.tables
    rows = [tuple(row) for row in table.rows]
    assert all(len(row) == len(table.header) for row in rows)
    assert rows[0] == ("none", "", "20", "20", "20", "20", "1000", "2000", "0 %", "")
    assert rows[1][:2] == ("0.1 s", "0.001")
    assert {row[0] for row in rows} == {"none", "0.1 s", "0.5 s", "p95"}
    assert report.words.startswith(f"{PLAN.reason}\nNote: {SAMPLES.notes[0]}")


def test_the_figure_says_what_was_drawn(tmp_path: Path) -> None:
    """Curves, delays, budget and axes are named; without any setting it is drawn all the same."""
    path = tmp_path / "plan.svg"
    draw_plan(path, TRACE, PLAN, budget=0.05)
    drawn = set(re.findall(r"<!-- (.*) -->", path.read_text(encoding="utf-8")))
    assert drawn >= {"1,000 requests, recorded and hedged", "p99.9 of the latency"}
    assert drawn >= {"without hedging", "recommended: 0.1 s", "0.5 s", "measured, p95", "budget"}
    draw_plan(path, TRACE, make_plan(TRACE, (), budget=0.05, in_order=True), budget=0.05)
    assert "recommended" not in path.read_text(encoding="utf-8")


# --- Beside what is measured.

_PUBLISHES, _RATE = 3_000, 400.0
# Far above what a busy machine adds to a request of some milliseconds.
_HEDGING = HedgingSettings(0.4, refill_ratio=0.02)
_LATE = 0.02


def _measure(client: Client) -> tuple[list[float], int]:
    """Publish the schedule; return what each publish took, and the requests.

    Time by which this machine was late to publish is not the requests'. If it was very late, it
    had no time for its clients either: then once more.
    """
    script = FaultScript(
        latency=LogNormal(median=0.005, sigma=0.4), faults=[Stall(2.0, probability=0.01)], seed=10
    )
    how: dict[str, Any] = {"publishes": _PUBLISHES, "rate": _RATE, "hedging": _HEDGING}
    for _ in range(2):
        with MeasuringProcess() as process:
            run = process.run(partial(tail, client=client, script=script, **how))
        if sorted(run.lateness)[-30] < _LATE:
            break
    taken = [max(0.0, end - late) for end, late in zip(run.latencies, run.lateness, strict=True)]
    return taken, run.requests


@pytest.mark.slow
def test_the_prediction_is_what_is_then_measured(run: Run, tmp_path: Path) -> None:
    """On a recorded trace with 1 % at 2 s: the p99.9 within 10 %, and the extra requests."""
    with ThreadPoolExecutor() as threads:
        (recorded, plain), (measured, requests) = threads.map(_measure, Client)
    assert plain == _PUBLISHES
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(f'{{"latency_s": {value:.6f}}}\n' for value in recorded))
    delays = f"{_HEDGING.hedge_delay},1"
    done = run("plan", path, "--json", "--rate", _RATE, "--hedge-delays", delays)
    recommended = done.data()["recommended"]
    assert recommended["hedge_delay_s"] == _HEDGING.hedge_delay
    assert recommended["refill_ratio"] == _HEDGING.refill_ratio

    p99_9 = nearest_rank(sorted(measured), 9_990)
    assert recommended["p99_9_ms"] == pytest.approx(1000 * p99_9, rel=0.1)
    extra = recommended["extra_requests_pct"] / 100 * _PUBLISHES
    # Thirty or so stalls: a hedge takes a draw too, so that a stall more or less is met.
    assert extra == pytest.approx(requests - _PUBLISHES, rel=0.1, abs=2)
