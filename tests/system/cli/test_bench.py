"""``hedged-pubsub bench``, small and real: processes, servers, clients, tables, page."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from hedged_pubsub.cli.bench import scenarios
from hedged_pubsub.cli.bench.jobs import MeasuringProcess
from hedged_pubsub.cli.bench.results import Setup, check_page, make_report, write_page
from hedged_pubsub.cli.bench.scenarios import Row, both
from hedged_pubsub.cli.measures import Pair, Spread
from hedged_pubsub.cli.report import MeasurementError, RefusedError
from hedged_pubsub.cli.values import WORKLOADS
from hedged_pubsub.testing import FaultScript, Fixed, Stall
from tests.system.cli.command import Command, Run, children, interrupt, linux_only
from tests.system.conftest import wait_until

ROOT = Path(__file__).parents[3]
SMALL = ("bench", "--targets", "server", "--repeats", "1", "--seconds", "0.1", "--sizes", "100")


# --- Processes.


def test_jobs_run_in_one_process_that_is_not_this_one() -> None:
    """The second job finds the process warm; a failure does not end it, and a death is told."""
    with MeasuringProcess() as process:
        first = process.run(os.getpid)
        with pytest.raises(MeasurementError, match="No such file"):
            process.run(partial(os.stat, "on purpose"))
        assert process.run(os.getpid) == first != os.getpid()
        with pytest.raises(MeasurementError, match="died"):
            process.run(partial(os.kill, first, signal.SIGTERM))


@linux_only
def test_ctrl_c_leaves_nothing_behind(command: Command) -> None:
    """Exit code 130 within seconds, no traceback, and no process."""
    process = command.start(*SMALL, "--seconds", "30")
    # Its server, and a process for each client.
    wait_until(lambda: len(children(process.pid)) >= 3, timeout=30)
    interrupt(process)


# --- What is measured.


def test_throughput_and_latency_as_json_and_on_a_page(run: Run, tmp_path: Path) -> None:
    """One object on stdout; tables in the page and figures beside it."""
    page = make_page(tmp_path / "page.md")
    workloads = ("--workloads", "throughput,latency", "--batches", "10")
    done = run(*SMALL, *workloads, "--json", "--report", page)
    result = done.data()
    (row,) = result["throughput"]
    assert row["batch"] == 10
    assert row["official_per_second"] > 0
    ratio = row["hedged_per_second"] / row["official_per_second"]
    assert row["speedup"]["median"] == pytest.approx(ratio)
    # What this is all about; nowhere near the bound, even on a busy machine.
    assert row["cpu_saving"]["median"] > 1
    assert len(result["latency"]) == 2
    assert result["tails"] == []
    text = page.read_text(encoding="utf-8")
    assert "| 100 | 10 |" in text
    assert "one message a batch" in text
    assert (tmp_path / "images" / "bench-throughput.png").read_bytes().startswith(b"\x89PNG")
    assert "2/2" not in done.err, "progress is for terminals"


@pytest.fixture(scope="module")
def results() -> dict[str, list[Row]]:
    """Measure a little of everything that only our own server can do, side by side."""
    script = FaultScript(latency=Fixed(0.002), faults=[Stall(0.8, calls=(30,))])
    ticks: list[int] = []
    tick = partial(ticks.append, 1)
    with ThreadPoolExecutor() as threads:
        held = threads.submit(scenarios.measure_held, messages=30, batch=1, tick=tick)
        grown = threads.submit(scenarios.measure_endurance, batches=100, tick=tick)
        job = partial(scenarios.measure_tail, "one", script, publishes=60, rate=200)
        tail = threads.submit(job, tick=tick)
    measured = {"held": [held.result()], "endurance": [grown.result()], "tails": [tail.result()]}
    assert len(ticks) == 8
    return {"throughput": [RATES], "latency": [], **measured}


def test_a_tail_is_measured_from_the_schedule(results: dict[str, list[Row]]) -> None:
    """The stalled message waits for its stall, or is hedged; the server counts the requests."""
    (tail,) = results["tails"]
    assert len(tail["official"]) == len(tail["hedged"]) == len(tail["best"]) == 60
    assert max(tail["official"]) >= 0.8 > max(tail["hedged"]) >= tail["hedge_delay"] == 0.1
    assert max(tail["best"]) == pytest.approx(0.102)
    # One at least, and more on a machine that is busy; the budget bounds them.
    assert tail["best_extra_requests"] == 1 <= tail["extra_requests"] <= tail["allowed_requests"]


@linux_only
def test_threads_and_memory(results: dict[str, list[Row]]) -> None:
    """The official client has a thread for each stalled batch, this one few; both take memory."""
    (held,), (grown,) = results["held"], results["endurance"]
    assert (held["messages"], held["batches"]) == (30, 30)
    assert held["official_threads"] == 30
    assert held["hedged_threads"] <= 2
    for client in ("official", "hedged"):
        assert held[f"{client}_traced_bytes"] > 100
        assert held[f"{client}_resident_bytes"] is not None
        assert min(grown[client].values()) > 10_000_000


# --- Tables and the page.

SETUP = Setup(date="2026-01-01", machine="a machine", versions="versions", load=None)
SPREAD = Spread(low=4.96, median=5.5, high=6.0)
RATES = {
    "target": "server",
    "batch": 10,
    "size": 100,
    **both("per_second", Pair(official=1000.0, hedged=5500.0)),
    "speedup": SPREAD,
    **both("cpu_us", Pair(official=1100.0, hedged=None)),  # as if the system did not tell
    "cpu_saving": SPREAD,
}


def make_page(path: Path, workloads: tuple[str, ...] = WORKLOADS) -> Path:
    """Write a page with a place for each workload."""
    places = [f"<!-- bench: {name} -->\nold\n<!-- end of bench: {name} -->" for name in workloads]
    path.write_text("# Title\n\n" + "\n\nbetween\n\n".join(places) + "\n\nthe end\n")
    return path


def test_tables_and_json(results: dict[str, list[Row]], capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured has a table each, with a cell for each column; JSON has all numbers."""
    report = make_report(SETUP, results)
    workloads = [table.workload for table in report.tables]
    assert workloads == ["throughput", "memory", "memory", "tails", "tails"]
    for table in report.tables:
        assert all(len(row) == len(table.header) for row in table.rows)
    (cells,) = report.tables[0].rows
    ratio = "5.0 – 5.5 – 6.0"  # noqa: RUF001
    assert list(cells) == ["100", "10", "1,000", "5,500", ratio, "1,100.0 µs", "-", ratio]
    report.show(as_json=False)
    out = capsys.readouterr().out
    for words in ("the project's server", "best possible", "MiB", "a machine"):
        assert words in out

    report.show(as_json=True)
    loaded = json.loads(capsys.readouterr().out)
    assert loaded.keys() == {"setup", *results}
    assert loaded["setup"]["machine"] == "a machine"
    assert loaded["throughput"][0]["speedup"] == {"low": 4.96, "median": 5.5, "high": 6.0}
    assert loaded["endurance"][0]["official"].keys() == {"early", "late"}
    assert loaded["tails"][0]["official"] == list(results["tails"][0]["official"])


def test_the_page_keeps_all_but_the_results(results: dict[str, list[Row]], tmp_path: Path) -> None:
    """What stood in the places of what was measured is replaced; a second run changes nothing."""
    page = make_page(tmp_path / "page.md")
    check_page(page, WORKLOADS)
    write_page(page, make_report(SETUP, results))
    once = page.read_text()
    write_page(page, make_report(SETUP, results))
    assert page.read_text() == once
    assert once.startswith("# Title\n\n<!-- bench: throughput -->\n\n**Throughput against")
    assert once.endswith("\n\nthe end\n")
    assert once.count("between") == len(WORKLOADS) - 1
    assert once.count("old") == 1  # latency was not measured
    assert once.count(SETUP.in_words()) == len(WORKLOADS) - 1
    assert "| 100 | 10 | 1,000 | 5,500 | 5.0 – 5.5 – 6.0 |" in once  # noqa: RUF001


def test_a_page_has_a_place_for_every_workload(tmp_path: Path) -> None:
    """Else it is refused before any measuring; the manual has them, and shows the figures."""
    page = make_page(tmp_path / "page.md", WORKLOADS[:-1])
    check_page(page, WORKLOADS[:-1])
    with pytest.raises(RefusedError, match=re.escape("<!-- bench: tails -->")):
        check_page(page, WORKLOADS)
    manual = ROOT / "docs" / "benchmarks.md"
    check_page(manual, WORKLOADS)
    for figure in ("images/bench-throughput.png", "images/bench-tails.png"):
        assert f"]({figure})" in manual.read_text(encoding="utf-8")


def test_a_target_that_does_not_answer(run: Run) -> None:
    """It is refused within seconds, by the option's name."""
    start = time.monotonic()
    run("bench", "--targets", "127.0.0.1:9", "--quick").refused(
        "hedged-pubsub bench", "--targets 127.0.0.1:9", "is it running?"
    )
    assert time.monotonic() - start < 30
