"""The report on a frozen connection: what is counted, and how it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedged_pubsub.cli.frozen_report import (
    FrozenReport,
    FrozenRun,
    client_summary,
    timeline,
)

RUN = FrozenRun(publishes=10, rate=2.0, frozen_from=4, grace=1.0, hedge_delay=0.2)
"""Ten messages in five seconds; the connection freezes after two of them."""
FAST = (0.01, 0.02, 0.03, 0.04)
PLAIN = (*FAST, None, None, None, None, None, None)
HEDGED = (*FAST, 0.21, 0.22, 0.02, 0.01, 0.01, 0.01)


def test_answers_count_until_the_end() -> None:
    """The end is a grace after the last message's turn, whenever a message was sent."""
    latencies = (6.0, 6.1, 5.0, *[0.1] * 5, 2.0, 1.6)
    assert RUN.end == 6.0
    assert RUN.answers(latencies) == (6.0, None, 5.0, *[0.1] * 5, 2.0, None)


def test_a_client_that_recovers() -> None:
    """It has settled with the first message from which all were below the hedge delay."""
    summary = client_summary(RUN, HEDGED, connections=3)
    assert (summary.answered_before, summary.answered_after, summary.unanswered) == (4, 6, 0)
    assert summary.p50_before_ms == 20
    assert summary.first_after_ms == 210
    assert summary.slowest_after_ms == 220
    assert summary.settled_s == 1.0
    assert summary.connections == 3


def test_a_client_that_does_not_recover() -> None:
    """Without answers there is no latency, and it never settles."""
    summary = client_summary(RUN, PLAIN, connections=1)
    assert (summary.answered_before, summary.answered_after, summary.unanswered) == (4, 0, 6)
    assert summary.first_after_ms is summary.slowest_after_ms is summary.settled_s is None


@pytest.mark.parametrize(
    ("after", "settled"),
    [((0.01,) * 6, 0.0), ((0.3, None, 0.1, 0.1, 0.1, 0.1), 1.0), ((0.1,) * 5 + (0.3,), None)],
)
def test_settling_needs_all_that_follow(
    after: tuple[float | None, ...], settled: float | None
) -> None:
    """One late answer, or none, starts it anew."""
    assert client_summary(RUN, (*FAST, *after), connections=1).settled_s == settled


@pytest.mark.parametrize("publishes", [1, 2, 7, 10, 25, 200])
def test_the_time_line_holds_every_message_and_breaks_at_the_freeze(publishes: int) -> None:
    """Whatever the number of messages, no period has some from before and some from after."""
    frozen_from = int(0.3 * publishes)
    run = FrozenRun(publishes=publishes, rate=10, frozen_from=frozen_from, grace=1, hedge_delay=0.2)
    plain = [0.01] * frozen_from + [None] * (publishes - frozen_from)
    hedged = [0.02] * publishes
    periods = timeline(run, plain, hedged)
    assert sum(period.sent for period in periods) == publishes
    assert sum(period.plain_answered for period in periods) == frozen_from
    assert sum(period.hedged_answered for period in periods) == publishes
    assert 0 in [period.since_freeze_s for period in periods]
    assert len(periods) <= 12


def test_words_rows_and_json_say_the_same() -> None:
    """A reader and a program get the same numbers."""
    report = FrozenReport(
        run=RUN,
        plain=client_summary(RUN, PLAIN, connections=1),
        hedged=client_summary(RUN, HEDGED, connections=3),
        timeline=timeline(RUN, PLAIN, HEDGED),
    )
    assert report.in_words() == (
        "Of 6 publishes after the freeze, PublisherClient got none answered within 1 s of the last"
        " one, and HedgedPublisher all, below the hedge delay from 1.0 s after the freeze on."
    )
    assert ("first publish after", "no answer", "210.0 ms") in report.rows()
    assert ("below the hedge delay again", "never", "after 1.0 s") in report.rows()
    assert ("+0.0 s", "0 of 1", "1 of 1, max 210 ms") in report.timeline_rows()
    result = json.loads(report.to_json())
    assert list(result) == ["run", "plain", "hedged", "timeline"]
    assert result["hedged"]["settled_s"] == 1.0
    assert result["plain"]["unanswered"] == 6


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("plain", [PLAIN, (None,) * 10], ids=["some", "none"])
def test_it_can_be_drawn(tmp_path: Path, plain: tuple[float | None, ...], suffix: str) -> None:
    """Also with a client that got no answer at all."""
    pytest.importorskip("matplotlib")
    from hedged_pubsub.cli import frozen_plot

    path = tmp_path / f"plot.{suffix}"
    frozen_plot.draw(path, RUN, plain=plain, hedged=HEDGED)
    assert path.stat().st_size > 1000
