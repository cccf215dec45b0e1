"""Every argument is checked before any work starts, and the complaint is one clear line."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub.cli.arguments import parse
from hedged_pubsub.cli.plan.samples import Reading
from hedged_pubsub.cli.values import WORKLOADS
from tests.system.cli.command import Run

FULL = {"batches": (1, 10, 100, 1000), "sizes": (100, 10_000), "repeats": 5, "seconds": 1}
QUICK = {"quick": True, "batches": (1, 100), "sizes": (100,), "repeats": 2, "seconds": 0.2}
_COSTS = {"topic": "a", "price": 40, "request_bytes": 9}
FROZEN = {"fault": "frozen-connection", "publishes": 200, "rate": 20}


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("demo", {"publishes": 4000, "rate": 200, "hedge_delay": 0.2, "max_tokens": 50}),
        ("demo --fault stalls --publishes 9 --rate 5", {"publishes": 9, "rate": 5}),
        ("demo --stall-rate 0.5 --stall 0.25", {"stall_rate": 0.5, "stall": 0.25}),
        ("demo --hedge-delay 0.15 --max-tokens 3", {"hedge_delay": 0.15, "max_tokens": 3}),
        ("demo --seed 9 --json --plot a.PNG", {"seed": 9, "json": True, "plot": Path("a.PNG")}),
        # Of a frozen connection the first seconds tell all; what is given goes before that.
        ("demo --fault frozen-connection", FROZEN),
        ("demo --fault frozen-connection --rate 3", {**FROZEN, "rate": 3}),
        ("bench", {"targets": None, "workloads": WORKLOADS, **FULL}),
        ("bench --quick --repeats 4", {**QUICK, "repeats": 4}),
        ("bench --targets server,emulator,a:8", {"targets": ("server", "emulator", "a:8")}),
        ("bench --workloads tails,latency", {"workloads": ("tails", "latency")}),
        ("bench --batches 5,1,5 --sizes 7", {"batches": (5, 1), "sizes": (7,)}),
        ("bench --repeats 3 --seconds 0.5 --seed 9", {"repeats": 3, "seconds": 0.5, "seed": 9}),
        ("bench --json --report page.md", {"json": True, "report": Path("page.md")}),
        ("plan x", {"source": Path("x"), "column": None, "hedge_delays": None}),
        ("plan x --rate 7 --hedge-delays 0.1,2", {"rate": 7, "hedge_delays": (0.1, 2)}),
        ("plan x --percentile-delay 0.9", {"percentile_delay": HedgeDelay.percentile(0.9)}),
        ("plan x --refill-ratios 0.2,0.01 --budget 1", {"refill_ratios": (0.2, 0.01), "budget": 1}),
        ("plan x --topic a --price 40 --request-bytes 9", _COSTS),
        ("plan --p50 500ms --p99.9 5s", {"source": None, "p50": 0.5, "p99_9": 5}),
        ("plan x --max-tokens 5 --plot a.svg", {"max_tokens": 5, "plot": Path("a.svg")}),
        ("serve --seed 4", {"port": 8085, "latency": 0, "stall_rate": 0, "seed": 4}),
        ("serve --seed 4 --port 0 --stall 3", {"port": 0, "stall": 3}),
        ("serve --seed 4 --stall-rate 1 --latency 0.1", {"stall_rate": 1, "latency": 0.1}),
    ],
    ids=str,
)
def test_options(line: str, changed: dict[str, Any]) -> None:
    """The defaults are what the help and the manual promise; an option reaches its field only."""
    command, *words = line.split()
    others = {"plan": ["x"], "serve": ["--seed", "4"]}.get(command, [])
    assert parse([command, *words]) == dataclasses.replace(parse([command, *others]), **changed)


def test_serve_draws_a_seed_when_none_is_given() -> None:
    """Two servers without a seed do not repeat each other's stalls."""
    assert parse(["serve"]) != parse(["serve"])


def test_options_of_one_thing_make_it() -> None:
    """The settings of the hedged client, and how the input of a plan is to be read."""
    line = "demo --hedge-delay 0.15 --max-tokens 3 --refill-ratio 0.05"
    made: Any = parse(line.split())
    assert made.hedging == HedgingSettings(0.15, 3, 0.05)
    line = "plan x --column took --unit ms --malformed skip --seed 9"
    made = parse(line.split())
    assert made.reading == Reading(column="took", unit="ms", skip_malformed=True, seed=9)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", ["hedged-pubsub --help"]),
        ("frob", ["'frob'", "hedged-pubsub --help"]),
        ("demo --frob", ["--frob"]),
        ("demo --rate 0", ["--rate", "above 0", "5000", "'0'", "hedged-pubsub demo --help"]),
        ("demo --rate nan", ["--rate", "'nan'"]),
        ("demo --rate fast", ["--rate", "5000", "'fast'"]),
        ("demo --publishes 1.5", ["--publishes", "1 to 1000000", "'1.5'"]),
        ("demo --stall-rate 1.01", ["--stall-rate", "0 to 1", "'1.01'"]),
        ("demo --plot tail.gif", ["--plot", ".png", "'tail.gif'"]),
        ("demo --plot no/such/folder/tail.png", ["--plot", "'no/such/folder'", "create it"]),
        ("demo --plot a-folder.png", ["--plot", "'a-folder.png'", "can be written"]),
        ("demo --fault frozen-connection --stall 1", ["--stall", "--fault stalls"]),
        ("demo --fault frozen-connection --stall-rate 0", ["--stall-rate", "--fault stalls"]),
        ("bench --targets moon", ["--targets", "HOST:PORT", "'moon'"]),
        ("bench --targets 127.0.0.1:0", ["--targets", "'127.0.0.1:0'"]),
        ("bench --targets ,server", ["--targets", "''"]),
        ("bench --workloads speed", ["--workloads", "throughput", "'speed'"]),
        ("bench --batches 1,many", ["--batches", "'many'"]),
        ("bench --report no/such/page.md", ["--report", "no/such/page.md"]),
        ("plan", ["FILE", "--p50 13ms", "hedged-pubsub plan --help"]),
        ("plan --p50 13 --p99 5s", ["--p50", "13ms", "'13'"]),
        ("plan --p50 13ms", ["not enough"]),
        ("plan x --p50 13ms", ["FILE", "--p50", "exclude"]),
        ("plan x --malformed ignore", ["--malformed", "'ignore'", "skip"]),
        ("plan x --percentile-delay 95", ["--percentile-delay", "0.5", "95"]),
        ("plan no/such/file.csv", ["no/such/file.csv"]),
        ("plan .", ["cannot read .", "irectory"]),
    ],
)
def test_a_wrong_argument_is_one_clear_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, parts: list[str]
) -> None:
    """It is refused before any work; the line names the argument, its value and its bound."""
    monkeypatch.chdir(tmp_path)
    Path("a-folder.png").mkdir()
    command = line.split()[:1] if not line.startswith("frob") else []
    run(*line.split()).refused(" ".join(("hedged-pubsub", *command)), *parts)


@pytest.mark.parametrize(
    ("command", "bounds"),
    [
        ("demo", "above 0 and up to 5000|1 to 1000000|above 0 and up to 30|0.1 to 10|0.001 to 0.2"),
        ("bench", "each 1 to 1000|each 1 to 9000000|1 to 100 [default: 5]|above 0 and up to 60"),
        ("plan", "each 0.1 to 10|each 0.001 to 0.2|1 to 250|0 to 1 [default: 0.05|up to 100000"),
        ("serve", "0 to 65535 [default: 8085]|0 to 10 [default: 0]|0 to 1 [default: 0]|0 or above"),
    ],
)
def test_help_names_ranges_and_defaults(run: Run, command: str, bounds: str) -> None:
    """They are those of the kinds of values that are read."""
    done = run(command, "--help")
    assert run(command, "-h") == done == (0, done.out, "")
    for part in bounds.split("|"):
        assert part in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("missing", "line", "extras"),
    [
        (["click"], "serve", "[cli]"),
        (["rich"], "demo", "[cli]"),
        (["rich"], "plan x.csv --json", "[cli]"),
        (["matplotlib"], "demo --plot tail.png", "[plot]"),
        (["rich", "matplotlib"], "bench --report page.md", "[cli,plot]"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, missing: list[str], line: str, extras: str
) -> None:
    """The command refuses before it measures for a minute and then cannot show the result."""
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    done = run(*line.split())
    done.refused(done.err.partition(":")[0], *missing, f"pip install 'hedged-pubsub{extras}'")


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_the_operators_switch_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """With hedging switched off, the official client would be compared with itself."""
    monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", "1")
    run(command).refused(f"hedged-pubsub {command}", "HEDGED_PUBSUB_DISABLE")
