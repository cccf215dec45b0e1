"""Every argument is checked before any work starts, and the complaint is one clear line."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hedged_pubsub.__main__ import main
from hedged_pubsub._version import __version__
from hedged_pubsub.cli.arguments import DemoOptions, ServeOptions, parse
from hedged_pubsub.cli.values import UsageError
from hedged_pubsub.settings import HedgingSettings

DEMO_DEFAULTS = DemoOptions(
    fault="stalls",
    publishes=4_000,
    rate=200.0,
    stall_rate=0.01,
    stall=2.0,
    hedging=HedgingSettings(hedge_delay=0.2, max_tokens=50, refill_ratio=0.1),
    seed=1,
    json=False,
    plot=None,
)


def test_demo_without_options_takes_the_documented_defaults() -> None:
    """The defaults are what the help and the manual promise."""
    assert parse(["demo"]) == DEMO_DEFAULTS


def test_demo_defaults_leave_room_under_a_minute() -> None:
    """Both schedules and a last stall after each leave ten seconds for start and warm-up."""
    options = parse(["demo"])
    assert isinstance(options, DemoOptions)
    assert 2 * (options.publishes / options.rate + options.stall) <= 50


def test_a_frozen_connection_is_shown_on_a_schedule_of_its_own() -> None:
    """Ten seconds for each client, and what is given goes before that."""
    frozen = ["demo", "--fault", "frozen-connection"]
    assert parse(frozen) == dataclasses.replace(
        DEMO_DEFAULTS, fault="frozen-connection", publishes=200, rate=20.0
    )
    options = parse([*frozen, "--publishes", "9", "--rate", "3"])
    assert isinstance(options, DemoOptions)
    assert (options.publishes, options.rate) == (9, 3.0)


def test_demo_takes_every_option(tmp_path: Path) -> None:
    """Each option reaches the field that carries its name."""
    plot = tmp_path / "tail.svg"
    options = parse(
        "demo --fault stalls --publishes 10 --rate 5 --stall-rate 0.5 --stall 0.25"
        " --hedge-delay 0.15 --max-tokens 3 --refill-ratio 0.05 --seed 9"
        f" --json --plot {plot}".split()
    )
    assert options == DemoOptions(
        fault="stalls",
        publishes=10,
        rate=5.0,
        stall_rate=0.5,
        stall=0.25,
        hedging=HedgingSettings(hedge_delay=0.15, max_tokens=3, refill_ratio=0.05),
        seed=9,
        json=True,
        plot=plot,
    )


def test_serve_takes_every_option() -> None:
    """Each option reaches the field that carries its name."""
    line = "serve --port 0 --latency 0.1 --stall-rate 1 --stall 3 --seed 4"
    options = parse(line.split())
    assert options == ServeOptions(port=0, latency=0.1, stall_rate=1.0, stall=3.0, seed=4)


def test_serve_draws_a_seed_when_none_is_given() -> None:
    """Two servers without a seed do not repeat each other's stalls."""
    first, second = parse(["serve"]), parse(["serve"])
    assert isinstance(first, ServeOptions)
    assert isinstance(second, ServeOptions)
    assert isinstance(first, ServeOptions)
    assert isinstance(second, ServeOptions)
    assert first.seed != second.seed
    assert dataclasses.replace(first, seed=0) == ServeOptions(
        port=8085, latency=0.0, stall_rate=0.0, stall=2.0, seed=0
    )


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", ["COMMAND", "hedged-pubsub --help"]),
        ("frob", ["frob", "demo", "serve"]),
        ("demo --frob", ["--frob"]),
        ("demo --publish 5", ["--publish 5"]),
        ("demo --rate 0", ["--rate", "above 0", "'0'", "hedged-pubsub demo --help"]),
        ("demo --rate -1", ["--rate", "above 0", "'-1'"]),
        ("demo --rate nan", ["--rate", "'nan'"]),
        ("demo --rate inf", ["--rate", "5000 per second", "'inf'"]),
        ("demo --rate fast", ["--rate", "'fast'"]),
        ("demo --publishes 0", ["--publishes", "from 1 to 1000000", "'0'"]),
        ("demo --publishes 1.5", ["--publishes", "whole number", "'1.5'"]),
        ("demo --stall-rate 1.01", ["--stall-rate", "from 0 to 1", "'1.01'"]),
        ("demo --stall-rate -0.1", ["--stall-rate", "from 0 to 1", "'-0.1'"]),
        ("demo --stall-rate nan", ["--stall-rate", "'nan'"]),
        ("demo --stall 0", ["--stall", "up to 30 seconds", "'0'"]),
        ("demo --stall 31", ["--stall", "up to 30 seconds", "'31'"]),
        ("demo --seed -1", ["--seed", "'-1'"]),
        ("demo --hedge-delay 0.05", ["hedge_delay", "0.1", "10", "0.05"]),
        ("demo --hedge-delay nan", ["hedge_delay", "nan"]),
        ("demo --hedge-delay soon", ["--hedge-delay", "'soon'"]),
        ("demo --max-tokens 251", ["max_tokens", "1", "250", "251"]),
        ("demo --max-tokens 1.5", ["--max-tokens", "'1.5'"]),
        ("demo --refill-ratio 0.3", ["refill_ratio", "0.001", "0.2", "0.3"]),
        ("demo --plot tail.gif", ["--plot", ".png", "'tail.gif'"]),
        ("demo --plot no/such/folder/tail.png", ["--plot", "'no/such/folder'", "create it"]),
        ("serve --port 70000", ["--port", "65535", "'70000'", "hedged-pubsub serve --help"]),
        ("serve --latency -1", ["--latency", "'-1'"]),
        ("serve --publishes 5", ["--publishes"]),
    ],
)
def test_a_wrong_argument_is_one_clear_line_and_exit_code_2(
    line: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the argument, its bound and the value; stdout stays empty."""
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("hedged-pubsub")
    assert ": error: " in captured.err
    for part in parts:
        assert part in captured.err


@pytest.mark.parametrize("name", ["folder.png", "missing/tail.png"])
def test_a_plot_path_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """A folder with a fitting name, or a file in a missing folder, is refused at once."""
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match="--plot"):
        parse(["demo", "--plot", str(tmp_path / name)])


def test_a_plot_suffix_in_capitals_is_accepted(tmp_path: Path) -> None:
    """What some systems call PNG is the same format."""
    options = parse(["demo", "--plot", str(tmp_path / "TAIL.PNG")])
    assert isinstance(options, DemoOptions)
    assert options.plot == tmp_path / "TAIL.PNG"


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``--version`` names the command and the version, and succeeds."""
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"hedged-pubsub {__version__}\n"


def test_demo_help_names_every_option_with_its_range_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help is complete without the manual."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    lines = capsys.readouterr().out.splitlines()
    for option, bounds, default in (
        ("--publishes", "1 to 1000000", "4000"),
        ("--rate", "above 0 and up to 5000", "200"),
        ("--stall-rate", "0 to 1", "0.01"),
        ("--stall", "above 0 and up to 30", "2"),
        ("--seed", "0 or above", "1"),
        ("--hedge-delay", "0.1 to 10", "0.2"),
        ("--max-tokens", "1 to 250", "50"),
        ("--refill-ratio", "0.001 to 0.2", "0.1"),
    ):
        (line,) = [text for text in lines if text.startswith(f"  {option} ")]
        assert bounds in line
        assert f"(default: {default})" in line
