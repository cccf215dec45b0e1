"""``hedged-pubsub plan``, real: its output, its speed, its predictions beside what is measured."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from hedged_pubsub import HedgingSettings
from hedged_pubsub.cli.bench.jobs import MeasuringProcess, tail
from hedged_pubsub.cli.clients import Client
from hedged_pubsub.cli.measures import nearest_rank
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
    assert [row["percentile"] for row in found["settings"]] == [None] * 10 + [0.95] * 2
    assert found["recommended"]["hedge_delay_s"] == 0.1
    assert 105 < found["recommended"]["p99_9_ms"] < 115
    assert 0.8 < found["recommended"]["extra_requests_pct"] < 1.2
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert str(plot) in done.err


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


@pytest.mark.skipif(os.name != "posix", reason="needs a device that is full")
def test_an_output_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    """A full disk is one line and exit code 1."""
    path = write_requests(tmp_path / "few.csv", 1_000)
    with open("/dev/full", "w") as full:
        process = command.start("plan", str(path), "--hedge-delays", "1", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == "hedged-pubsub: error: cannot write the output: No space left on device\n"


def test_an_output_with_few_characters(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a Western Windows cannot show is shown otherwise; a pipe gets no progress."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    path = write_requests(tmp_path / "few.csv", 1_000)
    done = command.run("plan", str(path), "--hedge-delays", "0.1,1")
    assert (done.code, done.err) == (0, "")
    assert "| 0.1 s |" in done.out
    assert "?" not in done.out


@pytest.mark.slow
def test_many_requests_take_seconds(run: Run, tmp_path: Path) -> None:
    """A minute of CPU time for a million at most; here a quarter of them, in a quarter of it."""
    path = write_requests(tmp_path / "many.csv", 250_000)
    start = time.process_time()
    done = run("plan", path, "--json")
    assert time.process_time() - start < 15
    assert done.data()["recommended"]["hedge_delay_s"] == 0.1


# --- Beside what is measured.

_PUBLISHES, _RATE = 3_000, 200.0
# Far above what a busy machine adds to a request of some milliseconds.
_HEDGING = HedgingSettings(0.4, refill_ratio=0.02)


def _measure(client: Client) -> tuple[list[float], int]:
    """Publish the schedule; return what each publish took, and the requests.

    Time by which this machine was late to publish is not the requests'. If it was very late, it
    had no time for its clients either: then once more.
    """
    script = FaultScript(
        latency=LogNormal(median=0.005, sigma=0.4), faults=[Stall(2.0, probability=0.01)], seed=10
    )
    job = partial(tail, client=client, script=script, hedging=_HEDGING)
    for _ in range(2):
        with MeasuringProcess() as process:
            run = process.run(partial(job, publishes=_PUBLISHES, rate=_RATE))
        if sorted(run.lateness)[-30] < 0.02:
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
    assert recommended["refill_ratio"] in (_HEDGING.refill_ratio, 0.05)
    p99_9 = nearest_rank(sorted(measured), 9_990)
    assert recommended["p99_9_ms"] == pytest.approx(1000 * p99_9, rel=0.1)
    extra = recommended["extra_requests_pct"] / 100 * _PUBLISHES
    # Thirty or so stalls: a hedge takes a draw too, so that a stall more or less is met.
    assert extra == pytest.approx(requests - _PUBLISHES, rel=0.1, abs=2)
