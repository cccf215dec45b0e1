"""The recording of latencies: what is a row, and what bounds the rows and their file."""

from __future__ import annotations

import csv
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hedged_pubsub import _recording
from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.events import ORIGINAL, Call, Event, Failed, Order, Start, Succeeded
from hedged_pubsub._core.runs import WOKE, Runs
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._recording import LatencyRecording

from .story import Permanent, Transient, earn

HEADER = "sent_s,latency_s,topic,attempt,outcome\n"


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Recorded:
    """Batches on a virtual clock, whose requests are recorded into a file."""

    def __init__(self, path: Path) -> None:
        self.now = 0.0
        self.runs: Runs[Batch] = Runs(HedgingSettings(1.0))
        earn(self.runs, 3)
        self.recording = LatencyRecording(path, self.runs.record, clock=lambda: self.now)

    def batch(self, *events: tuple[float, Event], topic: str = "topic") -> None:
        """Commit a batch now, and tell it of events after so many seconds."""
        batch = Batch(topic, math.inf, has_extras=False)
        start = self.now
        self._do(batch, self.runs.commit(batch, start))
        for after, event in events:
            self.now = start + after
            self._do(batch, self.runs.handle(batch, event, self.now))

    def _do(self, batch: Batch, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Start):
                self.runs.is_wanted(batch, order.attempt, self.now, is_logged=False)
            elif isinstance(order, Call):
                order.function()


WAKE = (1.0, WOKE)
BACKOFF: Any = {"transient": True, "backoff": 0.5}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(0.2, Succeeded(ORIGINAL))], ["0 +0 0.2 stored"]),
        ([WAKE, (1.25, Succeeded(1))], ["1 +1 0.25 stored", "0 +0 1.25 censored"]),
        ([WAKE, (1.25, Succeeded(ORIGINAL))], ["0 +0 1.25 stored", "1 +1 0.25 censored"]),
        (
            [(0.2, Failed(ORIGINAL, Transient(), **BACKOFF)), (0.7, WOKE), (0.9, Succeeded(0))],
            ["0 +0 0.2 Transient", "0 +0.7 0.2 stored"],
        ),
        (
            [WAKE, (1.1, Failed(1, Permanent())), (1.5, Succeeded(ORIGINAL))],
            ["1 +1 0.1 Permanent", "0 +0 1.5 stored"],
        ),
        (
            [WAKE, (1.5, Failed(ORIGINAL, Permanent()))],
            ["0 +0 1.5 Permanent", "1 +1 0.5 censored"],
        ),
        # The timer was due at 1 s, so this process was late.
        ([(1.5, Succeeded(ORIGINAL))], ["0 +0 1.5 late"]),
    ],
    ids=str,
)
def test_a_row_for_each_attempt_that_ends(
    tmp_path: Path, events: list[tuple[float, Event]], expected: list[str]
) -> None:
    """When it was sent, what it took and how it ended; what was cut off would have taken longer."""
    path = tmp_path / "latencies.csv"
    recorded = Recorded(path)
    recorded.batch((0.0, Succeeded(ORIGINAL)))
    recorded.batch(*events)
    recorded.recording.close()
    recorded.batch((0.0, Succeeded(ORIGINAL)))
    first, *others = rows(path)
    start = float(first["sent_s"])
    assert start == pytest.approx(time.time(), abs=60)
    assert [
        f"{row['attempt']} +{float(row['sent_s']) - start:.2g} "
        f"{float(row['latency_s']):g} {row['outcome']}"
        for row in others
    ] == expected


def test_rows_are_written_while_it_goes_on(tmp_path: Path) -> None:
    """Once a second, or when there are many; a topic's name cannot break a row."""
    path, topic = tmp_path / "latencies.csv", 'a, "topic"\n'
    recorded = Recorded(path)
    recorded.batch((0.5, Succeeded(ORIGINAL)), topic=topic)
    assert not rows(path)
    recorded.batch((0.9, Succeeded(ORIGINAL)))
    assert [row["topic"] for row in rows(path)] == [topic, "topic"]
    for _ in range(512):
        recorded.batch((0.0, Succeeded(ORIGINAL)))
    assert len(rows(path)) == 514


def test_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are two files at most, each with a header, and a new recording goes on with them."""
    monkeypatch.setattr(_recording, "MAX_BYTES", 500)
    path = tmp_path / "latencies.csv"
    for _ in range(50):
        recorded = Recorded(path)
        recorded.batch((0.5, Succeeded(ORIGINAL)))
        recorded.recording.close()
    old = tmp_path / "latencies.csv.1"
    assert sorted(tmp_path.iterdir()) == [path, old]
    for file in (path, old):
        text = file.read_text()
        assert text.startswith(HEADER)
        assert text.count("sent_s") == 1
        assert len(text) < 600


def test_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be written soon enough is dropped; one warning counts it."""
    monkeypatch.setattr(_recording, "MAX_ROWS", 3)
    path = tmp_path / "latencies.csv"
    recorded = Recorded(path)
    for _ in range(5):
        recorded.batch((0.1, Succeeded(ORIGINAL)))
    recorded.recording.close()
    assert len(rows(path)) == 3
    assert "2 latencies were not recorded" in caplog.text


def test_a_file_that_cannot_be_written_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The recording ends with one warning, and publishing goes on."""
    folder = tmp_path / "folder"
    folder.mkdir()
    recorded = Recorded(folder / "latencies.csv")
    (folder / "latencies.csv").unlink()
    folder.rmdir()
    for _ in range(3):
        recorded.batch((2.0, WOKE), (2.1, Succeeded(ORIGINAL)))
    assert not recorded.recording.is_open
    recorded.recording.close()
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert [one.getMessage().count("cannot be written") for one in warnings] == [1]


def test_what_is_no_recording_is_left_alone(tmp_path: Path) -> None:
    """Neither another file nor one that cannot be opened is written to."""
    path = tmp_path / "latencies.csv"
    path.write_text("latency_s\n1\n")
    with pytest.raises(ValueError, match="path must name a new file, or one that record_latencies"):
        Recorded(path)
    with pytest.raises(OSError, match="missing"):
        Recorded(tmp_path / "missing" / "latencies.csv")
    assert path.read_text() == "latency_s\n1\n"
