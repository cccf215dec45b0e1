"""What demo and plan found, as tables, JSON and words; and the figures of all commands."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hedged_pubsub import HedgeDelay
from hedged_pubsub.cli import plots
from hedged_pubsub.cli.clients import ClientRun
from hedged_pubsub.cli.demo import FrozenRun, frozen_report, stalls_report, summary, timeline
from hedged_pubsub.cli.measures import Pair
from hedged_pubsub.cli.plan.recommendation import make_plan, predict_all
from hedged_pubsub.cli.plan.run import plan_report
from hedged_pubsub.cli.plan.samples import Samples
from hedged_pubsub.cli.plan.simulation import Trace
from hedged_pubsub.cli.report import Report, note_lateness

PLAIN = [0.005] * 990 + [2.0] * 10
HEDGED = [0.005] * 990 + [0.1] * 10


def client_run(latencies: Sequence[float], requests: int, **counts: int) -> ClientRun:
    """Return a run."""
    counts = {"duplicates": 0, "requests": requests, **counts}
    return ClientRun(latencies=tuple(latencies), lateness=(0.0,), **counts)


def report(hedged: Sequence[float] = HEDGED, suppressed: int = 0, duplicates: int = 10) -> Report:
    """Return a report of 1,000 publishes with ten stalls."""
    counts = {"hedges_sent": 12, "hedges_won": 9, "hedges_suppressed": suppressed}
    run = client_run(hedged, 1011, **counts, duplicates=duplicates)
    return stalls_report(Pair(official=client_run(PLAIN[::-1], 1000), hedged=run))


def test_json_and_table_of_stalls(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read the object by these names; the table has a row for each of its numbers."""
    found = report(suppressed=8)
    found.show(as_json=True)
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    keys = ["p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms", "requests"]
    keys += ["hedges_sent", "hedges_won", "hedges_suppressed", "duplicates", "extra_requests_pct"]
    assert json.loads(line) == {
        "plain": dict(zip(keys[:6], [5, 5, 5, 2000, 2000, 1000], strict=True)),
        "hedged": dict(zip(keys, [5, 5, 5, 100, 100, 1011, 12, 9, 8, 10, 1.1], strict=True)),
    }

    found.show(as_json=False)
    out = capsys.readouterr().out
    rows = [re.findall(r"[^│┃\s](?:[^│┃]*[^│┃\s])?", text) for text in out.splitlines()]
    for row in (
        *(["p50", "5.0 ms", "5.0 ms"], ["p90", "5.0 ms", "5.0 ms"], ["p99", "5.0 ms", "5.0 ms"]),
        *(["p99.9", "2,000.0 ms", "100.0 ms"], ["max", "2,000.0 ms", "100.0 ms"]),
        *(["RPCs sent", "1,000", "1,011"], ["extra requests", "1.1 %"], ["hedges sent", "12"]),
        *(["hedges won", "9"], ["hedges suppressed", "8"], ["duplicates stored", "10"]),
    ):
        assert row in rows
    assert found.words in " ".join(out.split())


@pytest.mark.parametrize(
    ("how", "parts"),
    [
        ({}, ["fell from 2,000 ms to 100 ms", "1.1 %", "10 duplicates"]),
        ({"hedged": [0.005] * 990 + [1.9] * 10}, ["not change much", "1,900 ms"]),
        ({"hedged": [0.005] * 990 + [2.5] * 10}, ["rose from 2,000 ms to 2,500 ms"]),
        ({"duplicates": 0}, ["no duplicate"]),
        ({"suppressed": 1, "duplicates": 1}, ["1 duplicate was", "1 hedge was suppressed"]),
    ],
    ids=str,
)
def test_words_say_what_changed_and_what_it_cost(how: dict[str, Any], parts: list[str]) -> None:
    """Hedging that did not help is not sold as help; an empty bucket is named."""
    words = report(**how).words
    for part in parts:
        assert part in words


# --- A frozen connection: ten messages in five seconds, which freezes after two of them.

RUN = FrozenRun(publishes=10, rate=2.0, frozen_from=4, grace=1.0, hedge_delay=0.2)
FAST = (0.01, 0.02, 0.03, 0.04)
LATE = 99.0  # after the end, which is no answer
UNANSWERED = (*FAST, *[LATE] * 6)
RECOVERED = (*FAST, 0.21, 0.22, 0.02, 0.01, 0.01, 0.01)


def test_answers_count_until_the_end() -> None:
    """The end is a grace after the last message's turn, whenever a message was sent."""
    latencies = (6.0, 6.1, 5.0, *[0.1] * 5, 2.0, 1.6)
    assert RUN.end == 6.0
    assert RUN.answers(latencies) == (6.0, None, 5.0, *[0.1] * 5, 2.0, None)


@pytest.mark.parametrize(
    ("after", "settled"),
    [((0.01,) * 6, 0.0), ((0.3, None, 0.1, 0.1, 0.1, 0.1), 1.0), ((0.1,) * 5 + (0.3,), None)],
)
def test_settling_needs_all_that_follow(
    after: tuple[float | None, ...], settled: float | None
) -> None:
    """One late answer, or none, and it begins again."""
    assert summary(RUN, (*FAST, *after), connections=1)["settled_s"] == settled


@pytest.mark.parametrize("publishes", [1, 2, 7, 25, 200])
def test_the_time_line_holds_every_message_and_breaks_at_the_freeze(publishes: int) -> None:
    """Whatever the number of messages, no period has some from before and some from after."""
    frozen_from = int(0.3 * publishes)
    run = FrozenRun(publishes=publishes, rate=10, frozen_from=frozen_from, grace=1, hedge_delay=0.2)
    plain = [0.01] * frozen_from + [None] * (publishes - frozen_from)
    periods = timeline(run, Pair(official=plain, hedged=[0.02] * publishes))
    for key, count in (("sent", publishes), ("plain_answered", frozen_from)):
        assert sum(period[key] for period in periods) == count
    assert sum(period["hedged_answered"] for period in periods) == publishes
    assert 0 in [period["since_freeze_s"] for period in periods]
    assert len(periods) <= 12


def test_the_report_on_a_frozen_connection(capsys: pytest.CaptureFixture[str]) -> None:
    """A reader and a program get the same numbers."""
    plain = client_run(UNANSWERED, 0, connections=1)
    hedged = client_run(RECOVERED, 0, connections=3)
    found = frozen_report(RUN, Pair(official=plain, hedged=hedged))
    found.show(as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["run", "plain", "hedged", "timeline"]
    keys = ["answered_before", "answered_after", "unanswered", "p50_before_ms"]
    keys += ["first_after_ms", "slowest_after_ms", "settled_s", "connections"]
    values = [4, 0, 6, 20, None, None, None, 1]
    assert data["plain"] == dict(zip(keys, values, strict=True))
    assert data["hedged"] == dict(zip(keys, [4, 6, 0, 20, 210, 220, 1.0, 3], strict=True))
    both, periods = found.tables
    assert ("first publish after", "no answer", "210.0 ms") in both.rows
    assert ("below the hedge delay again", "never", "after 1.0 s") in both.rows
    assert ("+0.0 s", "0 of 1", "1 of 1, max 210 ms") in periods.rows
    for part in ("Of 6 publishes", "none", "all", "from 1.0 s"):
        assert part in found.words


# --- A plan for two slow requests in a thousand: two delays fixed, one measured.

SAMPLES = Samples(
    latencies=[0.01] * 499 + [2.0] + [0.02] * 499 + [1.0],
    source="'latency_s' in s",
    skipped=3,
    notes=("A note about them.",),
)
TRACE = Trace(SAMPLES.latencies, rate=50, seed=1)
DELAYS: list[float | HedgeDelay] = [0.1, 0.5, HedgeDelay.percentile(0.95)]
PREDICTIONS = predict_all(
    TRACE, delays=DELAYS, refill_ratios=[0.001, 0.1], max_tokens=3, tick=lambda: None
)
PLAN = dataclasses.replace(
    make_plan(TRACE, PREDICTIONS, budget=0.05, in_order=True), recommended=PREDICTIONS[1]
)


def test_json_and_table_have_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Ratios that predict the same share a row of the table; the first row is without hedging."""
    report = plan_report(SAMPLES, TRACE, PLAN)
    report.show(as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["samples"], found["skipped"]) == (SAMPLES.source, 1000, 3)
    assert (found["rate"], found["budget_pct"]) == (50, 5)
    fast = dict.fromkeys(("p50_ms", "p90_ms", "p95_ms", "p99_ms"), 20)
    assert found["without"] == {**fast, "p99_9_ms": 1000, "p99_99_ms": 2000}
    keys = ("hedge_delay_s", "percentile", "refill_ratio", "max_tokens")
    assert [tuple(row[key] for key in keys) for row in found["settings"]] == [
        (delay, percentile, ratio, 3)
        for delay, percentile in ((0.1, None), (0.5, None), (1.0, 0.95))
        for ratio in (0.001, 0.1)
        if percentile is None or ratio > 0.05
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
    assert rows[1][:2] == ("0.1 s", "0.001+")
    assert {row[0] for row in rows} == {"none", "0.1 s", "0.5 s", "p95"}
    assert report.words.startswith(f"{PLAN.reason}\nNote: {SAMPLES.notes[0]}")


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_is_split_where_the_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """No cell is broken or cut off; each part says again what its rows are about."""
    monkeypatch.setenv("COLUMNS", str(width))
    report = plan_report(SAMPLES, TRACE, PLAN)
    report.show(as_json=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    cells = {cell.strip() for line in out.splitlines() for cell in re.split("[│┃]", line)}
    (table,) = report.tables
    assert {cell for row in table.rows for cell in row} <= cells
    assert (out.count("│ none") > 1) == (width == 40)


# --- What is printed beside a report.


@pytest.mark.parametrize(
    ("lateness", "noted"), [([0.0] * 99 + [0.5], False), ([0.0] * 98 + [0.25] * 2, True)]
)
def test_a_late_schedule_is_noted(
    capsys: pytest.CaptureFixture[str], lateness: list[float], noted: bool
) -> None:
    """More than one late send in a hundred puts the machine's slowness into the latencies."""
    note_lateness(lateness)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("250 ms" in err) == noted == bool(err)


# --- Figures.

NO_ANSWERS = Pair(official=(None,) * 10, hedged=(None,) * 10)
LATENCIES = Pair(official=[0.005, 2.0], hedged=[0.005, 0.105])
SPEED = {"size": 100, "official_per_second": 1000.0, "hedged_per_second": 5500.0}
RATES = [{**SPEED, "target": one, "batch": n} for one in ("emulator", "server") for n in (1, 10)]
TIMES = {"official": (0.005, 2.0), "hedged": (0.005, 0.105), "best": (0.005, 0.104)}
TAIL = {"case": "1 % stall", "hedge_delay": 0.1, **TIMES}
NO_PLAN = make_plan(TRACE, (), budget=0.05, in_order=True)


@pytest.mark.parametrize(
    ("draw", "arguments", "words"),
    [
        (
            plots.draw_demo,
            (LATENCIES, 0.25, "two publishes"),
            "PublisherClient|HedgedPublisher|hedge delay (0.25 s)|two publishes|100 ms"
            "|latency, counted from the scheduled send time|share of publishes at least this slow",
        ),
        (
            plots.draw_frozen,
            (RUN, Pair(official=UNANSWERED, hedged=RECOVERED).map(RUN.answers)),
            "PublisherClient|HedgedPublisher|the connection freezes|no answer|10 ms"
            "|PublisherClient: no answer within 1 s of the last publish|hedge delay (0.2 s)",
        ),
        # Nothing is as high as no answer.
        (plots.draw_frozen, (RUN, NO_ANSWERS), "no answer"),
        (
            plots.draw_throughput,
            (RATES,),
            "emulator|server|official, 100 bytes|hedged, 100 bytes|messages per second",
        ),
        (plots.draw_tails, ([TAIL] * 3,), "official|hedged|best possible|hedge delay|1 % stall"),
        (
            plots.draw_plan,
            (TRACE, PLAN),
            "1,000 requests, recorded and hedged|p99.9 of the latency|without hedging"
            "|recommended: 0.1 s|0.5 s|measured, p95|budget",
        ),
        (plots.draw_plan, (TRACE, NO_PLAN), "without hedging|budget"),
    ],
    ids=["demo", "frozen", "no answers", "throughput", "tails", "plan", "no plan"],
)
def test_a_figure_says_what_was_drawn(
    tmp_path: Path, draw: Callable[..., None], arguments: tuple[Any, ...], words: str
) -> None:
    """Curves, lines, axes and titles are named in it."""
    path = tmp_path / "figure.svg"
    draw(path, *arguments)
    drawn = set(re.findall(r"<!-- (.*) -->", path.read_text(encoding="utf-8")))
    assert set(words.split("|")) <= drawn
    assert any("recommended" in one for one in drawn) == ("recommended" in words)


def test_the_suffix_names_the_format(tmp_path: Path) -> None:
    """In capitals too; other tests have SVG, and PNG."""
    plots.draw_demo(tmp_path / "a.PDF", LATENCIES, 0.25, "two publishes")
    assert (tmp_path / "a.PDF").read_bytes().startswith(b"%PDF")
