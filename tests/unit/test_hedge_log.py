"""The log lines about hedges, as a driver on virtual time has them written, and their reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hedged_pubsub._core import hedge_log, log
from hedged_pubsub._core.hedge_warnings import HedgeWarnings
from hedged_pubsub._core.settings import HedgingSettings

from .fakes import FakeCall, Threads, fail_to_log, handled
from .story import Permanent

Records = list[logging.LogRecord]


@pytest.fixture
def records() -> Iterator[Records]:
    """Keep what is logged, at DEBUG level too."""
    kept: Records = []
    with handled(kept.append):
        yield kept


class Scene(Threads):
    """A driver on virtual time that has earned tokens, and its batches."""

    def __init__(self, tokens: int, refill_ratio: float = 0.1) -> None:
        super().__init__(HedgingSettings(hedge_delay=1.0, refill_ratio=refill_ratio), tokens)

    def submit(self, seconds: float) -> list[FakeCall]:
        """Send a batch, and return its requests after some time."""
        batch = self.send()
        self.advance(seconds)
        return batch.calls


ENDS: dict[str, Callable[[Any, Any], object]] = {
    "won": lambda original, hedge: hedge.succeed(["message id"]),
    "lost": lambda original, hedge: original.succeed(["message id"]),
    "failed": lambda original, hedge: (hedge.fail(Permanent()), original.succeed()),
    "cancelled": lambda original, hedge: original.fail(Permanent()),
}


@pytest.mark.parametrize("outcome", ENDS)
def test_a_line_for_each_hedge(records: Records, outcome: str) -> None:
    """One, when it has ended: for people as text, for machines as fields; nothing of a message."""
    original, hedge = Scene(tokens=1).submit(1.25)
    assert not records, "its outcome is not known yet"
    ENDS[outcome](original, hedge)
    (record,) = records
    assert (record.name, record.levelname, record.exc_info) == ("hedged_pubsub", "DEBUG", None)
    assert record.getMessage() == (
        f"hedge 1 on topic, sent after 1.000 s, {outcome} after another 0.250 s"
    )
    told = {"attempt": 1, "topic": "topic", "delay": 1.0, "outcome": outcome, "duration": 0.25}
    assert fields(record) == told


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return what a record tells a machine beyond what every record does."""
    usual = {*vars(logging.makeLogRecord({})), "message"}
    return {name: value for name, value in vars(record).items() if name not in usual}


def test_lines_of_a_batch_with_several_hedges(records: Records) -> None:
    """Each has its own, with its own delay."""
    calls = Scene(tokens=2).submit(2.5)
    calls[1].succeed()
    lines = [fields(record) for record in records]
    told = sorted((line["attempt"], line["delay"], line["outcome"]) for line in lines)
    assert told == [(1, 1.0, "won"), (2, 2.0, "lost")]


def test_without_debug_there_is_nothing_to_write(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is even made, for the thread that would write it."""
    made: list[Any] = []
    monkeypatch.setattr(hedge_log.HedgeEnded, "write", lambda line: made.append(line))
    caplog.set_level(logging.INFO, logger="hedged_pubsub")
    Scene(tokens=1).submit(1.25)[1].succeed()
    assert not made
    assert not caplog.records


def losers_only() -> None:
    """Each original is answered right after its third hedge was sent."""
    scene = Scene(tokens=30)
    for _ in range(10):
        scene.submit(3.25)[0].succeed()


def some_winners() -> None:
    """One hedge in ten wins, which is what they are for."""
    scene = Scene(tokens=30)
    for number in range(30):
        scene.submit(1.25)[number % 10 == 9].succeed()


@pytest.mark.parametrize(
    ("story", "hedges", "texts"),
    [
        # Of a hundred batches, which would have earned ten tokens by default.
        (lambda: Scene(10, 0.001).submit(5.5), 0, ["101 batches have not earned one token"]),
        # One batch is stuck, and hedges are due for five minutes.
        (lambda: Scene(1).submit(300), 0, ["no token for any of them"]),
        (losers_only, 30, ["the last 21 hedges all lost"]),
        (some_winners, 30, []),
    ],
    ids=["never a token", "a long outage", "losers only", "some winners"],
)
def test_one_warning_where_hedging_cannot_help(
    records: Records, story: Callable[[], object], hedges: int, texts: list[str]
) -> None:
    """Beside the lines of hedges; it names the topic, also for machines, and what to do."""
    story()
    warnings = [record for record in records if record.levelname == "WARNING"]
    assert len(records) == hedges + len(warnings)
    for warning, text in zip(warnings, texts, strict=True):
        assert warning.name == "hedged_pubsub"
        assert warning.getMessage().startswith("hedging cannot help on topic: ")
        assert text in warning.getMessage()
        assert fields(warning) == {"topic": "topic"}


def test_a_topic_of_several_lines_is_logged_on_one(records: Records) -> None:
    """Whoever names a topic cannot forge a line of the log."""
    hedge_log.CannotHelp(topic="a\nb", reason="why").write()
    ended = {"attempt": 1, "delay": 1.0, "duration": 1.0}
    hedge_log.HedgeEnded(topic="a\nb", outcome="won", **ended).write()  # type: ignore[arg-type]
    assert len(records) == 2
    for record in records:
        assert "\n" not in record.getMessage()
        assert repr("a\nb") in record.getMessage()
        assert vars(record)["topic"] == "a\nb"


@pytest.mark.parametrize("told", [True, False])
def test_a_handler_that_fails_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], told: bool
) -> None:
    """Its error is printed, unless Python's logging is told to keep quiet about such."""
    monkeypatch.setattr(logging, "raiseExceptions", told)
    with handled(fail_to_log):
        log.write(logging.ERROR, "text")
    assert ("ZeroDivisionError" in capsys.readouterr().err) == told


# --- When a warning is due: no clock, no log.


def test_never_a_token() -> None:
    """A hundred batches that have not earned one: the ratio is named. Fewer are no reason."""
    warnings = HedgeWarnings(HedgingSettings(refill_ratio=0.001))
    assert [warnings.suppressed(batches, now=0) for batches in range(100)] == [None] * 100
    reason = warnings.suppressed(100, now=1) or ""
    assert reason.startswith("100 batches")
    assert "refill_ratio (0.001)" in reason


# When what happened, in seconds: no token for a hedge, one sent, or a batch decided whose hedges
# lost or won; and a part of the reason where that is to be warned of.
WARNINGS = {
    "a minute without a token": "5 none, 35 none, 64.9 none, 65 none: due for 60 s",
    "a token ends that": "0 none, 59 none, 59 sent, 60 none, 119.9 none, 120 none: due for 60 s",
    "a minute in which no hedge is due does not": "0 none, 60 none: due for 60 s",
    "a longer time does": "0 none, 60.1 none, 3660 none",
    "twenty losers": "0 lost 20: last 20 hedges",
    "of two batches": "0 lost 19, 0 lost 1: last 20 hedges",
    "of three batches": "0 lost 7, 0 lost 7, 0 lost 7: last 21 hedges",
    "a winner begins the count again": "0 lost 19, 0 won 2, 0 lost 19, 0 won 2",
    "one warning in ten minutes, and the count goes on": """
        100 lost 20: last 20 hedges, 699.9 lost 20, 630 none, 690 none, 699.9 none,
        700 lost 1: last 21 hedges, 1300 lost 19, 1300 lost 1: last 20 hedges""",
}


@pytest.mark.parametrize("name", WARNINGS)
def test_when_a_warning_is_due(name: str) -> None:
    """Where hedges were due for a minute without a token, or lose always; it names the settings."""
    warnings = HedgeWarnings(HedgingSettings(hedge_delay=0.7, refill_ratio=0.1))
    warnings.sent()
    for event in WARNINGS[name].split(","):
        happened, _, text = event.partition(": ")
        seconds, what, *hedges = happened.split()
        now, reason = float(seconds), None
        if what == "none":
            reason = warnings.suppressed(1000, now=now)
        elif what == "sent":
            warnings.sent()
        else:
            reason = warnings.decided(int(hedges[0]), won=what == "won", now=now)
        assert bool(reason) == bool(text), event
        assert text in (reason or "")
        assert "hedge_delay (0.7)" in (reason or "hedge_delay (0.7)")
        assert (what == "none" and bool(reason)) == ("refill_ratio (0.1)" in (reason or ""))
