"""The options of ``hedged-pubsub plan``, and what it shows: JSON, table, figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedged_pubsub import HedgeDelay
from hedged_pubsub.__main__ import main
from hedged_pubsub.cli.arguments import parse
from hedged_pubsub.cli.plan.arguments import PlanOptions
from hedged_pubsub.cli.plan.figure import draw_plan
from hedged_pubsub.cli.plan.recommendation import Plan, make_plan, predict_all
from hedged_pubsub.cli.plan.report import make_report, table, words
from hedged_pubsub.cli.plan.samples import Reading, Samples
from hedged_pubsub.cli.plan.simulation import Trace


def test_without_options_the_defaults_hold() -> None:
    """The defaults are what the help and the manual promise."""
    assert parse(["plan", "publishes.csv"]) == PlanOptions(
        source=Path("publishes.csv"),
        reading=Reading(column=None, unit=None, skip_malformed=False, seed=1),
        rate=100.0,
        hedge_delays=None,
        measured=None,
        refill_ratios=(0.01, 0.02, 0.05, 0.1, 0.2),
        max_tokens=50,
        budget=0.02,
        json=False,
        plot=None,
    )


def test_every_option_reaches_its_field() -> None:
    """Each option reaches the field that it is about."""
    line = (
        "plan - --column took --unit ms --malformed skip --rate 7 --seed 9 --hedge-delays 0.1,2"
        " --percentile-delay 0.9 --refill-ratios 0.2,0.001 --max-tokens 5 --budget 0.5 --json"
        " --plot plan.svg"
    )
    assert parse(line.split()) == PlanOptions(
        source=None,
        reading=Reading(column="took", unit="ms", skip_malformed=True, seed=9),
        rate=7.0,
        hedge_delays=(0.1, 2.0),
        measured=HedgeDelay.percentile(0.9),
        refill_ratios=(0.2, 0.001),
        max_tokens=5,
        budget=0.5,
        json=True,
        plot=Path("plan.svg"),
    )


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", ["FILE"]),
        ("x --unit us", ["--unit", "'us'"]),
        ("x --malformed ignore", ["--malformed", "'ignore'", "skip"]),
        ("x --rate 0", ["--rate", "above 0", "'0'"]),
        ("x --hedge-delays 0.05", ["--hedge-delays", "0.1 to 10 seconds", "'0.05'"]),
        ("x --hedge-delays 1,nan", ["--hedge-delays", "'nan'"]),
        ("x --percentile-delay 95", ["--percentile-delay", "above 0.5", "95"]),
        ("x --refill-ratios 0.3", ["--refill-ratios", "0.001 to 0.2", "'0.3'"]),
        ("x --max-tokens 0", ["--max-tokens", "1 to 250"]),
        ("x --budget 2", ["--budget", "0 to 1", "'2'"]),
        ("x --plot plan.gif", ["--plot", ".png", "'plan.gif'"]),
        ("no/such/file.csv", ["cannot read no/such/file.csv", "No such file"]),
        (".", ["cannot read .", "directory"]),
    ],
)
def test_a_wrong_argument_is_one_clear_line_and_exit_code_2(
    line: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before any work, and the line names argument, bound and value."""
    assert main(["plan", *line.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("hedged-pubsub plan: error: ")
    for part in parts:
        assert part in captured.err


@pytest.fixture
def made() -> tuple[Samples, Trace, Plan]:
    """Make a plan for two slow requests in a thousand: one delay fixed, one measured."""
    samples = Samples(
        latencies=[0.01] * 499 + [2.0] + [0.02] * 499 + [1.0],
        source="'latency_s' in s",
        skipped=3,
        notes=("A note about them.",),
    )
    trace = Trace(samples.latencies, rate=50, seed=1)
    predictions = predict_all(
        trace,
        delays=[0.1, 0.5, HedgeDelay.percentile(0.95)],
        refill_ratios=[0.001, 0.1],
        max_tokens=1,
        tick=lambda: None,
    )
    return samples, trace, make_plan(trace, predictions, budget=0.05, in_order=True)


def test_json_has_every_setting_and_the_recommended_one(made: tuple[Samples, Trace, Plan]) -> None:
    """All that the table shows and more, for machines."""
    samples, trace, plan = made
    found = json.loads(make_report(samples, trace, plan, budget=0.05).to_json())
    assert found["source"] == "'latency_s' in s"
    assert (found["samples"], found["skipped"], found["rate"]) == (1000, 3, 50)
    assert found["budget_pct"] == 5
    assert found["without"] == {
        "p50_ms": 20,
        "p90_ms": 20,
        "p95_ms": 20,
        "p99_ms": 20,
        "p99_9_ms": 1000,
        "p99_99_ms": 2000,
    }
    assert [
        (row["hedge_delay_s"], row["percentile"], row["refill_ratio"], row["max_tokens"])
        for row in found["settings"]
    ] == [
        (0.1, None, 0.001, 1),
        (0.1, None, 0.1, 1),
        (0.5, None, 0.001, 1),
        (0.5, None, 0.1, 1),
        (1.0, 0.95, 0.001, 1),
        (1.0, 0.95, 0.1, 1),
    ]
    recommended = found["recommended"]
    assert recommended in found["settings"]
    assert (recommended["hedge_delay_s"], recommended["refill_ratio"]) == (0.1, 0.1)
    assert recommended["extra_requests_pct"] == recommended["slower_pct"] == 0.2
    assert recommended["suppressed_pct"] == 0
    assert 110 <= recommended["p99_9_ms"] <= 120
    assert found["reason"].startswith("Recommended: HedgingSettings(hedge_delay=0.1,")
    assert found["warnings"][0] == "A note about them."
    assert len(found["warnings"]) == 2


def test_the_table_has_a_row_for_each_difference(made: tuple[Samples, Trace, Plan]) -> None:
    """Ratios that predict the same share a row; the first row is without hedging."""
    samples, trace, plan = made
    title, header, rows = table(trace, plan.predictions)
    cells = [tuple(row) for row in rows]
    assert "1,000 requests" in title
    assert all(len(row) == len(header) for row in cells)
    assert cells[0] == ("none", "", "20", "20", "20", "20", "1000", "2000", "0 %", "")
    first, *_ = [row for row in cells if row[0] == "0.1 s"]
    assert first[1] == "0.001"
    assert {row[0] for row in cells} == {"none", "0.1 s", "0.5 s", "p95"}
    text = words(make_report(samples, trace, plan, budget=0.05))
    assert text.splitlines()[0] == plan.reason
    assert "Note: A note about them." in text


def test_the_figure_says_what_was_drawn(made: tuple[Samples, Trace, Plan], tmp_path: Path) -> None:
    """Curves, delays, budget and axes are named in the figure."""
    _, trace, plan = made
    path = tmp_path / "plan.svg"
    draw_plan(path, trace, plan, budget=0.05)
    drawn = path.read_text(encoding="utf-8")
    for text in (
        "1,000 requests, recorded and hedged",
        "without hedging",
        "recommended: 0.1 s",
        "0.5 s",
        "measured, p95",
        "budget",
        "extra requests",
        "p99.9 of the latency",
    ):
        assert f"<!-- {text} -->" in drawn


def test_a_figure_without_settings(tmp_path: Path) -> None:
    """Where hedging cannot help, what was recorded is drawn all the same."""
    trace = Trace([0.01] * 10, rate=1, seed=1)
    plan = make_plan(trace, (), budget=0.05, in_order=True)
    draw_plan(tmp_path / "plan.png", trace, plan, budget=0.05)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
