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


def test_lines_are_written_outside_the_lock() -> None:
    """A handler is a user's code: it may ask the publisher for its numbers."""
    scene = Scene(tokens=1)
    free: list[bool] = []

    def ask(_record: logging.LogRecord) -> None:
        free.append(not scene.driver._engine_lock._is_owned())
        scene.driver.stats()

    with handled(ask):
        scene.submit(1.25)[1].succeed()
    assert free == [True]


# --- When a warning is due: no clock, no log.


@pytest.fixture
def warnings() -> HedgeWarnings:
    """Watch a topic that has had tokens."""
    made = HedgeWarnings(HedgingSettings(hedge_delay=0.7, refill_ratio=0.1))
    made.sent()
    return made


def suppressed(warnings: HedgeWarnings, *times: float) -> list[str | None]:
    """Suppress a hedge at these times, long after the start."""
    return [warnings.suppressed(1000, now=now) for now in times]


def test_never_a_token() -> None:
    """A hundred batches that have not earned one: the ratio is named. Fewer are no reason."""
    warnings = HedgeWarnings(HedgingSettings(refill_ratio=0.001))
    assert [warnings.suppressed(batches, now=0) for batches in range(100)] == [None] * 100
    reason = warnings.suppressed(100, now=1) or ""
    assert reason.startswith("100 batches")
    assert "refill_ratio (0.001)" in reason


def test_suppressed_for_a_minute(warnings: HedgeWarnings) -> None:
    """Hedges were due all along and no token was there: both settings are named."""
    assert suppressed(warnings, 5, 35, 64.9) == [None] * 3
    (reason,) = suppressed(warnings, 65)
    for named in ("60 s", "hedge_delay (0.7)", "refill_ratio (0.1)"):
        assert named in (reason or "")


def test_a_token_ends_the_time_without_one(warnings: HedgeWarnings) -> None:
    """After a hedge that is sent the minute is counted from the next one that is not."""
    assert suppressed(warnings, 0, 59) == [None] * 2
    warnings.sent()
    assert suppressed(warnings, 60, 119.9) == [None] * 2
    assert suppressed(warnings, 120) != [None]


@pytest.mark.parametrize(("pause", "is_one"), [(60, True), (60.1, False), (3600, False)])
def test_more_than_a_minute_in_which_no_hedge_was_due(
    warnings: HedgeWarnings, pause: float, is_one: bool
) -> None:
    """It ends the time without a token; another one begins after it."""
    assert suppressed(warnings, 0) == [None]
    assert (suppressed(warnings, pause) != [None]) == is_one


@pytest.mark.parametrize("batches", [[20], [19, 1], [7, 7, 7]])
def test_every_hedge_loses(warnings: HedgeWarnings, batches: list[int]) -> None:
    """Twenty in a row, however they are spread over batches: the delay is named."""
    reasons = [warnings.decided(hedges, won=False, now=0) for hedges in batches]
    assert reasons[:-1] == [None] * (len(batches) - 1)
    assert f"last {sum(batches)} hedges" in (reasons[-1] or "")
    assert "hedge_delay (0.7)" in (reasons[-1] or "")


def test_a_winner_begins_the_count_again(warnings: HedgeWarnings) -> None:
    """A hedge that wins now and then is what hedging is for."""
    for _ in range(3):
        assert warnings.decided(19, won=False, now=0) is None
        assert warnings.decided(2, won=True, now=0) is None


def test_one_warning_in_ten_minutes(warnings: HedgeWarnings) -> None:
    """Whatever the reasons are; after that, the same reason may be named again."""
    assert warnings.decided(20, won=False, now=100)
    assert warnings.decided(20, won=False, now=699.9) is None
    assert suppressed(warnings, 630, 690, 699.9) == [None] * 3
    assert warnings.decided(1, won=False, now=700), "twenty and one have lost meanwhile"
    assert warnings.decided(19, won=False, now=1300) is None, "a warning begins the count again"
    assert warnings.decided(1, won=False, now=1300)
