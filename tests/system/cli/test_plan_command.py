"""``hedged-pubsub plan`` as a process, and its predictions beside what is then measured."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hedged_pubsub import HedgingSettings
from hedged_pubsub.cli.bench.clients import Client
from hedged_pubsub.cli.bench.process import MeasuringProcess
from hedged_pubsub.cli.bench.tails import TailJob
from hedged_pubsub.testing import FaultScript, LogNormal, Stall
from tests.system.cli.command import Command


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of 20,000 requests, 1 % of which took two seconds."""
    draw = random.Random(1)
    path = tmp_path_factory.mktemp("plan") / "publishes.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("sent_at,latency_ms\n")
        for number in range(20_000):
            seconds = 2.0 if draw.random() < 0.01 else 0.005 * draw.lognormvariate(0, 0.4)
            file.write(f"{number / 100},{1000 * seconds:.3f}\n")
    return path


def test_json_is_all_of_stdout_and_recommends(
    command: Command, trace: Path, tmp_path: Path
) -> None:
    """One object for machines, and a figure; progress and notes go to stderr."""
    plot = tmp_path / "plan.png"
    done = command.run("plan", str(trace), "--json", "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert found["samples"] == 20_000
    assert found["without"]["p99_9_ms"] == 2000
    assert found["recommended"]["hedge_delay_s"] == 0.1
    assert 105 < found["recommended"]["p99_9_ms"] < 115
    assert 0.8 < found["recommended"]["extra_requests_pct"] < 1.2
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert str(plot) in done.stderr
    assert "Traceback" not in done.stderr


def test_the_table_and_the_reason_are_printed(
    command: Command, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader sees each delay, the recommendation and its reason; both bars are on stderr."""
    monkeypatch.setenv("COLUMNS", "300")
    done = command.run("plan", str(trace), "--hedge-delays", "0.1,1", "--percentile-delay", "0.95")
    assert done.returncode == 0, done.stderr
    for words in ("p99.99", "none", "0.1 s", "1 s", "p95", "HedgingSettings(hedge_delay=0.1,"):
        assert words in done.stdout
    assert "reading" in done.stderr
    assert "15/15" in done.stderr


def test_the_standard_input_and_skipped_lines(command: Command, trace: Path) -> None:
    """A pipe is read like a file; what is left out is said."""
    with trace.open("rb") as stream:
        process = command.start("plan", "-", "--json", stdin=stream)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["samples"] == 20_000

    process = command.start("plan", "-", "--json", "--malformed", "skip", stdin=subprocess.PIPE)
    out, err = process.communicate("latency_s\n0.1\nnan\n0.2\n", timeout=60)
    assert process.returncode == 0, err
    found = json.loads(out)
    assert (found["samples"], found["skipped"]) == (2, 1)
    assert any("line 3: a latency cannot be nan" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "the input is empty"),
        ("latency_s\n0.1\n-1\n", "line 3: a latency cannot be -1.0"),
        ("latency_s\n0.1\nNaN\n", "line 3: a latency cannot be nan"),
        ("latency_s\n0.1\ninf\n", "line 3: a latency cannot be inf"),
        ('{"plain": {}, "hedged": {}}', "not enough"),
    ],
)
def test_an_input_that_cannot_be_used_is_one_line_and_exit_code_2(
    command: Command, tmp_path: Path, text: str, error: str
) -> None:
    """The line names the file, and the line in it."""
    path = tmp_path / "latencies"
    path.write_text(text, encoding="utf-8")
    done = command.run("plan", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"hedged-pubsub plan: error: {path}: ")
    assert error in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a folder without permission to write")
def test_a_figure_that_cannot_be_written_is_exit_code_1(
    command: Command, trace: Path, tmp_path: Path
) -> None:
    """The plan is printed all the same."""
    target = tmp_path / "full.png"
    target.symlink_to("/dev/full")
    done = command.run("plan", str(trace), "--json", "--plot", str(target))
    assert done.returncode == 1
    assert json.loads(done.stdout)["samples"] == 20_000
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_million_requests_take_seconds(command: Command, tmp_path: Path) -> None:
    """Reading and recommending are far within half a minute: a third of that here."""
    draw = random.Random(1)
    path = tmp_path / "million.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("latency_ms\n")
        file.writelines(
            f"{2000 if draw.random() < 0.01 else 5 * draw.lognormvariate(0, 0.4):.3f}\n"
            for _ in range(1_000_000)
        )
    start = time.monotonic()
    done = command.run("plan", str(path), "--json")
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recommended"]["hedge_delay_s"] == 0.1
    assert seconds < 30


# --- Beside what is measured.

_PUBLISHES = 3_000
_RATE = 200.0
# Far above what a busy machine adds to a request of some milliseconds.
_DELAY = 0.4
_LATE = 0.02


def _measure(client: Client, hedging: HedgingSettings | None = None) -> tuple[list[float], int]:
    """Publish the schedule; return what each publish took, and the requests.

    Time by which this machine was late to publish is not the requests'. If it was very late, it
    had no time for its clients either: then once more.
    """
    script = FaultScript(
        latency=LogNormal(median=0.005, sigma=0.4), faults=[Stall(2.0, probability=0.01)], seed=10
    )
    arguments: dict[str, Any] = {} if hedging is None else {"hedging": hedging}
    job = TailJob(client=client, script=script, publishes=_PUBLISHES, rate=_RATE, **arguments)
    for _ in range(2):
        with MeasuringProcess() as process:
            tail = process.run(job)
        if sorted(tail.lateness)[-30] < _LATE:
            break
    taken = [max(0.0, end - late) for end, late in zip(tail.latencies, tail.lateness, strict=True)]
    return taken, tail.requests


@pytest.mark.slow
def test_the_prediction_is_what_is_then_measured(command: Command, tmp_path: Path) -> None:
    """On a recorded trace with 1 % at 2 s: the p99.9 within 10 %, and the extra requests."""
    recorded, requests = _measure(Client.OFFICIAL)
    assert requests == _PUBLISHES
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(f'{{"latency_s": {value:.6f}}}\n' for value in recorded))
    done = command.run(
        "plan", str(path), "--json", "--rate", f"{_RATE:g}", "--hedge-delays", f"{_DELAY},1"
    )
    assert done.returncode == 0, done.stderr
    recommended = json.loads(done.stdout)["recommended"]
    assert recommended["hedge_delay_s"] == _DELAY

    measured, requests = _measure(
        Client.HEDGED,
        HedgingSettings(
            hedge_delay=recommended["hedge_delay_s"], refill_ratio=recommended["refill_ratio"]
        ),
    )
    p99_9 = sorted(measured)[-(-999 * _PUBLISHES // 1000) - 1]
    assert recommended["p99_9_ms"] == pytest.approx(1000 * p99_9, rel=0.1)
    extra = recommended["extra_requests_pct"] / 100 * _PUBLISHES
    # Thirty or so stalls: a hedge takes a draw too, so that a stall more or less is met.
    assert extra == pytest.approx(requests - _PUBLISHES, rel=0.1, abs=2)
