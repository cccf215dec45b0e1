"""The options of the benchmark: defaults, lists, and one clear line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedged_pubsub.__main__ import main
from hedged_pubsub.cli.arguments import parse
from hedged_pubsub.cli.bench.arguments import WORKLOADS, BenchOptions


def test_without_options_everything_is_measured() -> None:
    """The defaults are what the help and the manual promise."""
    assert parse(["bench"]) == BenchOptions(
        targets=None,
        workloads=WORKLOADS,
        batches=(1, 10, 100, 1000),
        sizes=(100, 10_000),
        repeats=5,
        seconds=1.0,
        quick=False,
        seed=1,
        json=False,
        report=None,
    )


def test_every_option_reaches_its_field() -> None:
    """Each option reaches the field that carries its name; a list has no repetitions."""
    line = (
        "bench --targets server,emulator,127.0.0.1:8085 --workloads tails,latency --batches 5,1,5"
        " --sizes 7 --repeats 3 --seconds 0.5 --seed 9 --json --report page.md"
    )
    options = parse(line.split())
    assert options == BenchOptions(
        targets=("server", "emulator", "127.0.0.1:8085"),
        workloads=("tails", "latency"),
        batches=(5, 1),
        sizes=(7,),
        repeats=3,
        seconds=0.5,
        quick=False,
        seed=9,
        json=True,
        report=Path("page.md"),
    )


def test_quick_does_not_override_what_is_given() -> None:
    """``--quick`` is less of everything, but for what the user asked for."""
    quick = parse(["bench", "--quick"])
    mixed = parse(["bench", "--quick", "--repeats", "4"])
    assert isinstance(quick, BenchOptions)
    assert isinstance(mixed, BenchOptions)
    assert (quick.batches, quick.repeats, quick.seconds) == ((1, 100), 2, 0.2)
    assert (mixed.batches, mixed.repeats, mixed.seconds) == ((1, 100), 4, 0.2)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--targets moon", ["--targets", "HOST:PORT", "'moon'"]),
        ("--targets 127.0.0.1:0", ["--targets", "'127.0.0.1:0'"]),
        ("--targets ,server", ["--targets", "''"]),
        ("--workloads speed", ["--workloads", "throughput", "'speed'"]),
        ("--batches 0", ["--batches", "from 1 to 1000", "'0'"]),
        ("--batches 1,many", ["--batches", "'many'"]),
        ("--sizes 9000001", ["--sizes", "9000000"]),
        ("--repeats 0", ["--repeats", "from 1 to 100"]),
        ("--seconds 0", ["--seconds", "up to 60 seconds"]),
        ("--report no/such/page.md", ["--report", "no/such/page.md"]),
    ],
)
def test_a_wrong_argument_is_one_clear_line_and_exit_code_2(
    line: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before anything is measured, and the line names argument, bound and value."""
    assert main(["bench", *line.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("hedged-pubsub bench: error: ")
    for part in parts:
        assert part in captured.err


def test_the_operators_switch_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With hedging switched off, the official client would be measured beside itself."""
    monkeypatch.setenv("HEDGED_PUBSUB_DISABLE", "1")
    assert main(["bench"]) == 2
    assert "HEDGED_PUBSUB_DISABLE is set" in capsys.readouterr().err
