"""``record_latencies`` with real requests: both publishers, all modes, forks and exits."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import pytest

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from .conftest import FAST, TOPIC, Make, both_kinds
from .programs import needs_fork, run


def outcomes(path: Path) -> list[tuple[int, str]]:
    """Return the attempts and what became of them, sorted."""
    with path.open(newline="") as file:
        return sorted((int(row["attempt"]), row["outcome"]) for row in csv.DictReader(file))


@both_kinds
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (FAST, [(0, "censored"), (0, "stored"), (1, "stored")]),
        (HedgingSettings(0.1, observe_only=True), [(0, "stored")] * 2),
    ],
    ids=["hedged", "observed"],
)
def test_closing_the_publisher_ends_it(
    make: Make, tmp_path: Path, settings: HedgingSettings, expected: list[tuple[int, str]]
) -> None:
    """Called plainly it lasts as long as the publisher; a second one meanwhile is refused."""
    path = tmp_path / "latencies.csv"
    publisher = make(
        tokens=1,
        script=FaultScript(faults=[Stall(0.5, attempts=[0], times=1)]),
        hedging_settings=settings,
    )
    publisher.record_latencies(path)
    for _ in range(2):
        publisher.publish(TOPIC, b"data").result(timeout=10)
    with pytest.raises(RuntimeError, match=r"latencies\.csv.* already: close"):
        publisher.record_latencies(path)
    publisher.close()
    assert outcomes(path) == expected
    with pytest.raises(RuntimeError, match="closed publisher"):
        publisher.record_latencies(path)


@both_kinds
def test_a_block_with_hedging_off(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning says that nothing is recorded, and what to do instead."""
    path = tmp_path / "latencies.csv"
    publisher = make(hedging_settings=None)
    with publisher.record_latencies(path):
        publisher.publish(TOPIC, b"data").result(timeout=10)
    (line,) = (one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
    assert "hedging is off" in line
    assert "observe_only=True" in line
    assert not path.exists()


@pytest.mark.usefixtures("server")
def test_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """What was under way then is recorded as well."""
    path = tmp_path / "latencies.csv"
    run(
        f"""
        publisher = HedgedPublisher(settings(max_latency=60))
        publisher.record_latencies({str(path)!r})
        publisher.publish(topic, b"first")
        publisher.flush()
        publisher.publish(topic, b"last")
        """
    )
    assert outcomes(path) == [(0, "stored")] * 2


@needs_fork
def test_children(server: PubSubServer, tmp_path: Path) -> None:
    """A forked child goes on in the same file, and writes no row of its parent's again."""
    path = tmp_path / "latencies.csv"
    run(
        f"""
        publisher = HedgedPublisher(settings(max_messages=1))
        publisher.record_latencies({str(path)!r})
        publisher.publish(topic, b"parent").result(timeout=10)
        child = os.fork()
        publisher.publish(topic, b"both").result(timeout=10)
        if not child:
            sys.exit(0)
        os.waitpid(child, 0)
        """,
        hangs=None,
    )
    assert outcomes(path) == [(0, "stored")] * 3
    assert path.read_text().count("sent_s") == 1
