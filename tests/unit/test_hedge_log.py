"""The log lines about hedges, as a driver on virtual time has them written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hedged_pubsub import hedge_log
from hedged_pubsub._sync.driver import Driver
from hedged_pubsub.settings import HedgingSettings

from .fakes import FakeBatch, FakeCall, VirtualTime, virtual_driver
from .story import Permanent

Line = tuple[int, str, float, str, float]


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    """Keep what is logged, at DEBUG level too."""
    caplog.set_level(logging.DEBUG, logger="hedged_pubsub")
    handler = Records()
    hedge_log.LOGGER.addHandler(handler)
    yield handler.kept
    hedge_log.LOGGER.removeHandler(handler)


def fields(record: logging.LogRecord) -> Line:
    """Return what a record tells a machine."""
    extra: Any = record
    return extra.attempt, extra.topic, extra.delay, extra.outcome, extra.duration


def submit(driver: Driver) -> FakeBatch:
    """Send a batch that a test answers."""
    batch = FakeBatch()
    driver.submit(batch)
    return batch


def earn(driver: Driver, tokens: int) -> None:
    """Let batches succeed until the bucket holds so many tokens."""
    for _ in range(10 * tokens):
        submit(driver).calls[0].succeed()


def hedged(driver: Driver, time: VirtualTime) -> list[FakeCall]:
    """Send a batch, wait for its first hedge and a second for whatever may come."""
    batch = submit(driver)
    time.advance(time.now + 1.25)
    return batch.calls


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda original, hedge: hedge.succeed(), "won"),
        (lambda original, hedge: original.succeed(), "lost"),
        (lambda original, hedge: (hedge.fail(Permanent()), original.succeed()), "failed"),
        (lambda original, hedge: original.fail(Permanent()), "cancelled"),
    ],
    ids=["won", "lost", "failed", "cancelled"],
)
def test_a_line_for_each_hedge(
    records: list[logging.LogRecord],
    end: Callable[[FakeCall, FakeCall], object],
    outcome: str,
) -> None:
    """One, when it has ended: for people as text, for machines as fields."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    earn(driver, 1)
    original, hedge = hedged(driver, time)
    assert not records, "its outcome is not known yet"
    end(original, hedge)
    (record,) = records
    assert (record.name, record.levelname) == ("hedged_pubsub", "DEBUG")
    assert fields(record) == (1, "topic", 1.0, outcome, 0.25)
    assert record.getMessage() == (
        f"hedge 1 on topic, sent after 1.000 s, {outcome} after another 0.250 s"
    )


def test_lines_of_a_batch_with_several_hedges(records: list[logging.LogRecord]) -> None:
    """Each has its own, with its own delay."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    earn(driver, 2)
    batch = submit(driver)
    time.advance(2.5)
    batch.calls[1].succeed()
    assert sorted(fields(record)[::3] for record in records) == [(1, "won"), (2, "lost")]
    assert sorted(fields(record)[2] for record in records) == [1.0, 2.0]


def test_without_debug_there_is_nothing_to_write(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level is asked for once a hedge; a batch without a hedge asks for nothing."""
    asked: list[bool] = []
    is_wanted = hedge_log.is_wanted

    def asking() -> bool:
        asked.append(is_wanted())
        return asked[-1]

    monkeypatch.setattr(hedge_log, "is_wanted", asking)
    caplog.set_level(logging.INFO, logger="hedged_pubsub")
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    earn(driver, 1)
    assert asked == []
    _, hedge = hedged(driver, time)
    hedge.succeed()
    assert asked == [False]
    assert driver._topics["topic"].due == []
    assert not caplog.records


def test_one_warning_where_no_token_is_ever_earned(
    records: list[logging.LogRecord],
) -> None:
    """It names the topic, also for machines, and what to do."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0, refill_ratio=0.001))
    earn(driver, 10)  # if a success earned a tenth of a token
    submit(driver)
    time.advance(5.5)
    (record,) = records
    assert (record.name, record.levelname) == ("hedged_pubsub", "WARNING")
    assert record.getMessage().startswith("hedging cannot help on topic: 101 batches")
    assert "raise" in record.getMessage()
    assert vars(record)["topic"] == "topic"


def test_one_warning_after_a_minute_without_a_token(records: list[logging.LogRecord]) -> None:
    """Of a batch that is stuck in an outage, not one for each of its looks."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    earn(driver, 1)
    submit(driver)
    time.advance(300)
    (record,) = records
    assert "no token for any of them" in record.getMessage()


def test_one_warning_when_every_hedge_loses(records: list[logging.LogRecord]) -> None:
    """Beside the lines of the hedges, twenty of which have lost."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    earn(driver, 30)
    for _ in range(30):
        original, _ = hedged(driver, time)
        original.succeed()
    warnings = [record for record in records if record.levelname == "WARNING"]
    assert len(records) - len(warnings) == 30
    (warning,) = warnings
    assert "the last 20 hedges all lost" in warning.getMessage()


def test_nothing_of_a_message_is_logged(records: list[logging.LogRecord]) -> None:
    """A line has the topic, numbers and one of four words."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    earn(driver, 1)
    _, hedge = hedged(driver, time)
    hedge.succeed(["message id"])
    (record,) = records
    plain = vars(logging.makeLogRecord({}))
    assert set(vars(record)) - set(plain) - {"message"} == {
        "topic",
        "attempt",
        "delay",
        "outcome",
        "duration",
    }
    assert "id" not in record.getMessage()
    assert record.exc_info is None


def test_lines_are_written_outside_the_lock(records: list[logging.LogRecord]) -> None:
    """A handler is a user's code: it may ask the publisher for its numbers."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    earn(driver, 1)
    free: list[bool] = []

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            free.append(not driver._engine_lock.locked())
            driver.stats()

    handler = Asking()
    hedge_log.LOGGER.addHandler(handler)
    try:
        _, hedge = hedged(driver, time)
        hedge.succeed()
    finally:
        hedge_log.LOGGER.removeHandler(handler)
    assert free == [True]
