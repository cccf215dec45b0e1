"""How the benchmark shows its results: tables, the page, the figures, JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from hedged_pubsub.cli.bench.arguments import WORKLOADS
from hedged_pubsub.cli.bench.figures import draw_tails, draw_throughput
from hedged_pubsub.cli.bench.latency import LatencyRow
from hedged_pubsub.cli.bench.memory import EnduranceRow, Growth, HeldRow
from hedged_pubsub.cli.bench.page import check_page, write_page
from hedged_pubsub.cli.bench.results import Results
from hedged_pubsub.cli.bench.setup import Setup
from hedged_pubsub.cli.bench.spread import Spread
from hedged_pubsub.cli.bench.tables import tables
from hedged_pubsub.cli.bench.tails import TailRow
from hedged_pubsub.cli.bench.throughput import ThroughputRow
from hedged_pubsub.cli.table import print_tables
from hedged_pubsub.cli.values import UsageError

ROOT = Path(__file__).parents[3]
SETUP = Setup(date="2026-01-01", machine="a machine", versions="versions", load=None)
SPREAD = Spread(low=4.96, median=5.5, high=6.0)
MIB = 2**20

RESULTS = Results(
    setup=SETUP,
    throughput=tuple(
        ThroughputRow(
            target=target,
            batch=batch,
            size=100,
            official_per_second=1000.0 * batch,
            hedged_per_second=5500.0 * batch,
            speedup=SPREAD,
            official_cpu_us=1100.0,
            hedged_cpu_us=200.0,
            cpu_saving=SPREAD,
        )
        for target in ("emulator", "server")
        for batch in (1, 10)
    ),
    latency=(
        LatencyRow(
            target="server",
            settings="default",
            official_p50_ms=11.0,
            hedged_p50_ms=10.5,
            p50_ratio=SPREAD,
            official_p99_ms=12.0,
            hedged_p99_ms=11.0,
            p99_ratio=SPREAD,
        ),
    ),
    held=(
        HeldRow(
            messages=2000,
            batches=2000,
            official_threads=2000,
            hedged_threads=1,
            official_traced_bytes=17000.0,
            hedged_traced_bytes=8000.0,
            official_resident_bytes=None,
            hedged_resident_bytes=None,
        ),
    ),
    endurance=(
        EnduranceRow(
            batches=20_000,
            early=2000,
            size=32_768,
            official=Growth(early=100 * MIB, late=150 * MIB),
            hedged=Growth(early=None, late=None),
        ),
    ),
    tails=(
        TailRow(
            case="1 % stall for 2 s",
            publishes=4,
            hedge_delay=0.1,
            official=(0.005, 0.006, 0.007, 2.0),
            hedged=(0.005, 0.006, 0.007, 0.105),
            best=(0.005, 0.006, 0.007, 0.104),
            lateness=0.001,
            extra_requests=1,
            best_extra_requests=1,
            allowed_requests=50.4,
        ),
    ),
)


def test_all_that_was_measured_is_shown() -> None:
    """Each workload has a table, and each row has a cell for each column."""
    made = tables(RESULTS)
    assert {table.workload for table in made} == set(WORKLOADS)
    for table in made:
        assert table.rows
        assert all(len(row) == len(table.header) for row in table.rows)


def test_a_workload_that_was_not_measured_is_not_shown() -> None:
    """No empty tables."""
    assert tables(Results(setup=SETUP)) == ()
    some = dataclasses.replace(RESULTS, throughput=(), tails=())
    assert {table.workload for table in tables(some)} == {"latency", "memory"}


def test_cells_say_what_was_measured() -> None:
    """Ratios with their spread, units, and a dash where the system does not tell."""
    cells = {cell for table in tables(RESULTS) for row in table.rows for cell in row}
    expected = {"1,100.0 µs", "+50.0 MiB", "-", "504 ms", "2,000 ms", "1 (25.0 %)"}
    assert expected | {"5.0 – 5.5 – 6.0"} <= cells  # noqa: RUF001


def test_the_terminal_gets_tables_and_the_setup(capsys: pytest.CaptureFixture[str]) -> None:
    """All on stdout."""
    print_tables(
        [(table.title, table.header, table.rows) for table in tables(RESULTS)], SETUP.in_words()
    )
    out = capsys.readouterr().out
    for words in ("Google's emulator", "best possible", "a machine"):
        assert words in out


def test_json_has_everything() -> None:
    """One line, with the latencies themselves."""
    line = RESULTS.to_json()
    assert "\n" not in line
    loaded = json.loads(line)
    assert loaded["tails"][0]["official"] == [0.005, 0.006, 0.007, 2.0]
    assert loaded["throughput"][0]["speedup"] == {"low": 4.96, "median": 5.5, "high": 6.0}
    assert loaded["setup"]["machine"] == "a machine"


def make_page(path: Path, workloads: tuple[str, ...] = WORKLOADS) -> Path:
    """Write a page with a place for each workload."""
    places = [f"<!-- bench: {name} -->\nold\n<!-- end of bench: {name} -->" for name in workloads]
    path.write_text("# Title\n\n" + "\n\nbetween\n\n".join(places) + "\n\nthe end\n")
    return path


def test_the_page_keeps_all_but_the_results(tmp_path: Path) -> None:
    """What stood in the marked places is replaced, and a second run changes nothing more."""
    page = make_page(tmp_path / "page.md")
    check_page(page, WORKLOADS)
    write_page(page, SETUP, tables(RESULTS))
    once = page.read_text()
    write_page(page, SETUP, tables(RESULTS))
    assert page.read_text() == once
    assert "old" not in once
    assert once.startswith("# Title\n\n<!-- bench: throughput -->\n\n**Throughput against")
    assert once.endswith("\n\nthe end\n")
    assert once.count("between") == len(WORKLOADS) - 1
    assert once.count(SETUP.in_words()) == len(WORKLOADS)
    assert "| 100 | 10 | 10,000 | 55,000 | 5.0 – 5.5 – 6.0 |" in once  # noqa: RUF001


def test_a_run_of_one_workload_leaves_the_others_alone(tmp_path: Path) -> None:
    """Results of different runs can stand on one page, each with its setup."""
    page = make_page(tmp_path / "page.md")
    write_page(page, SETUP, tables(Results(setup=SETUP, latency=RESULTS.latency)))
    text = page.read_text()
    assert text.count("old") == len(WORKLOADS) - 1
    assert text.count(SETUP.in_words()) == 1


def test_a_page_without_a_place_is_refused(tmp_path: Path) -> None:
    """Before minutes of measuring, not after."""
    page = make_page(tmp_path / "page.md", WORKLOADS[:-1])
    check_page(page, WORKLOADS[:-1])
    with pytest.raises(UsageError, match=re.escape("<!-- bench: tails -->")):
        check_page(page, WORKLOADS)
    with pytest.raises(UsageError, match="exists"):
        check_page(tmp_path / "none.md", WORKLOADS)


def test_the_manual_has_a_place_for_every_workload() -> None:
    """``hedged-pubsub bench --report docs/benchmarks.md`` works, and its figures are shown."""
    page = ROOT / "docs" / "benchmarks.md"
    check_page(page, WORKLOADS)
    for figure in ("images/bench-throughput.png", "images/bench-tails.png"):
        assert f"]({figure})" in page.read_text(encoding="utf-8")


def test_the_figures_name_what_they_show(tmp_path: Path) -> None:
    """Both clients, the best that is possible, and a panel for each target and case."""
    tails, throughput = tmp_path / "tails.svg", tmp_path / "throughput.svg"
    draw_tails(tails, RESULTS.tails * 3)
    draw_throughput(throughput, RESULTS.throughput)
    drawn = tails.read_text(encoding="utf-8")
    for words in ("official", "hedged", "best possible", "hedge delay", "1 % stall for 2 s"):
        assert f"<!-- {words} -->" in drawn
    drawn = throughput.read_text(encoding="utf-8")
    for words in ("emulator", "server", "hedged, 100 bytes", "messages per second"):
        assert f"<!-- {words} -->" in drawn
