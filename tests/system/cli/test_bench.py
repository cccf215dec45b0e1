"""``hedged-pubsub bench``, small and real: processes, servers, clients, output."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from hedged_pubsub.cli.bench.arguments import WORKLOADS
from hedged_pubsub.cli.bench.clients import Client
from hedged_pubsub.cli.bench.memory import EnduranceJob, StallJob
from hedged_pubsub.cli.bench.process import MeasuringProcess
from hedged_pubsub.cli.bench.tails import HEDGING, TailJob
from hedged_pubsub.cli.open_loop import MeasurementError
from hedged_pubsub.testing import FaultScript, Fixed, Stall
from tests.system.cli.command import Command, children, is_running
from tests.system.conftest import wait_until

SMALL = ("bench", "--targets", "server", "--repeats", "1", "--seconds", "0.1", "--sizes", "100")

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counts threads and memory in /proc"
)


@dataclass(frozen=True)
class Echo:
    """Tells where it ran."""

    def run(self) -> int:
        """Return the process's id."""
        return os.getpid()


@dataclass(frozen=True)
class Broken:
    """Fails, or dies."""

    ended_by: int | None = None

    def run(self) -> None:
        """Fail."""
        if self.ended_by is not None:
            os.kill(os.getpid(), self.ended_by)
        raise ZeroDivisionError("on purpose")


def test_jobs_run_in_one_process_that_is_not_this_one() -> None:
    """The second job finds the process warm; its failure does not end the process."""
    with MeasuringProcess() as process:
        first = process.run(Echo())
        with pytest.raises(MeasurementError, match="on purpose"):
            process.run(Broken())
        assert process.run(Echo()) == first != os.getpid()


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_process_that_dies_is_reported() -> None:
    """The benchmark ends with an error instead of waiting."""
    with MeasuringProcess() as process:
        with pytest.raises(MeasurementError, match="has died"):
            process.run(Broken(signal.SIGKILL))


@linux_only
def test_ctrl_c_leaves_nothing_behind(command: Command) -> None:
    """Exit code 130 within seconds, no traceback, and no process."""
    process = command.start(*SMALL, "--seconds", "30")
    started: set[int] = set()
    give_up = time.monotonic() + 30
    # Its server, and a process for each client.
    while len(started) < 3 and process.poll() is None and time.monotonic() < give_up:
        started = children(process.pid)
        time.sleep(0.05)
    assert len(started) >= 3, process.communicate()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    wait_until(lambda: not any(map(is_running, started)))


def test_throughput_and_latency_as_json_and_on_a_page(command: Command, tmp_path: Path) -> None:
    """One object on stdout; tables in the page and figures beside it."""
    page = tmp_path / "page.md"
    page.write_text(
        "".join(f"<!-- bench: {name} -->\n<!-- end of bench: {name} -->\n" for name in WORKLOADS)
    )
    done = command.run(
        *SMALL,
        "--workloads",
        "throughput,latency",
        "--batches",
        "1,10",
        "--json",
        "--report",
        str(page),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    result = json.loads(done.stdout)
    assert [row["batch"] for row in result["throughput"]] == [1, 10]
    for row in result["throughput"]:
        assert row["official_per_second"] > 0
        assert row["speedup"]["median"] == pytest.approx(
            row["hedged_per_second"] / row["official_per_second"]
        )
        # What this is all about; nowhere near the bound, even on a busy machine.
        assert row["cpu_saving"]["median"] > 1
    assert len(result["latency"]) == 2
    assert result["tails"] == []
    text = page.read_text(encoding="utf-8")
    assert "| 100 | 10 |" in text
    assert "one message a batch" in text
    assert (tmp_path / "images" / "bench-throughput.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in done.stderr


def test_without_json_tables_are_printed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader sees the ratios, and on what machine they were measured."""
    monkeypatch.setenv("COLUMNS", "150")
    done = command.run(*SMALL, "--workloads", "throughput", "--batches", "1")
    assert done.returncode == 0, done.stderr
    for words in ("times as fast", "official", "hedged", "Measured"):
        assert words in done.stdout
    assert "2/2" in done.stderr


@pytest.mark.parametrize("client", Client)
def test_a_tail_is_measured_from_the_schedule(client: Client) -> None:
    """The stalled message waits for its stall, or is hedged; the server counts the requests."""
    script = FaultScript(latency=Fixed(0.002), faults=[Stall(0.8, calls=(30,))])
    with MeasuringProcess() as process:
        tail = process.run(TailJob(client=client, script=script, publishes=60, rate=100))
    assert len(tail.latencies) == len(tail.lateness) == 60
    if client is Client.OFFICIAL:
        assert max(tail.latencies) >= 0.8
        assert tail.requests == 60
    else:
        assert HEDGING.initial_hedge_delay <= max(tail.latencies) < 0.8
        # One at least, and more on a machine that is busy; the budget bounds them.
        assert 61 <= tail.requests <= 60 + 60 * HEDGING.refill_ratio + HEDGING.max_tokens


@linux_only
@pytest.mark.parametrize(("client", "threads"), [(Client.OFFICIAL, 30), (Client.HEDGED, 2)])
def test_what_stalled_messages_take_is_measured(client: Client, threads: int) -> None:
    """The official client has a thread for each batch, this one none; both take memory."""
    with MeasuringProcess() as process:
        held = process.run(StallJob(client=client, messages=30, batch=1, trace=True))
    assert held.traced_bytes is not None
    assert held.traced_bytes > 30 * 100
    assert held.resident_bytes is not None
    assert held.threads == threads if client is Client.OFFICIAL else held.threads <= threads


@linux_only
def test_memory_is_looked_at_early_and_late() -> None:
    """Both looks see the memory of a whole interpreter."""
    with MeasuringProcess() as process:
        growth = process.run(
            EnduranceJob(
                client=Client.HEDGED,
                batches=200,
                early=20,
                size=1024,
                stall_rate=0.05,
                stall=0.2,
                hedging=HEDGING,
            )
        )
    assert growth.early is not None
    assert growth.late is not None
    assert growth.early > 10_000_000
    assert growth.late > 10_000_000
