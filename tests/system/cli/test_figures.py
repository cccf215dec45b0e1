"""The figures of demo and bench: files in each format, that say what was drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hedged_pubsub.cli import plots
from hedged_pubsub.cli.demo import FrozenRun
from hedged_pubsub.cli.measures import Pair

RUN = FrozenRun(publishes=4, rate=2.0, frozen_from=2, grace=1.0, hedge_delay=0.2)
ANSWERS = Pair(official=(0.01, 0.02, None, None), hedged=(0.01, 0.02, 0.21, 0.01))
NO_ANSWERS = Pair(official=(None,) * 4, hedged=(None,) * 4)
SPEED = {"official_per_second": 1000.0, "hedged_per_second": 5500.0}
RATES = [
    {"target": target, "size": 100, "batch": batch, **SPEED}
    for target in ("emulator", "server")
    for batch in (1, 10)
]
TIMES = {"official": (0.005, 2.0), "hedged": (0.005, 0.105), "best": (0.005, 0.104)}
TAIL = {"case": "1 % stall for 2 s", "hedge_delay": 0.1, **TIMES}


def draw_demo(path: Path) -> None:
    """Draw two publishes."""
    latencies = Pair(official=[0.005, 2.0], hedged=[0.005, 0.105])
    plots.draw_demo(path, latencies, 0.25, "two publishes")


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (
            draw_demo,
            "PublisherClient|HedgedPublisher|hedge delay (0.25 s)|two publishes|100 ms"
            "|latency, counted from the scheduled send time|share of publishes at least this slow",
        ),
        (
            lambda path: plots.draw_frozen(path, RUN, ANSWERS),
            "PublisherClient|HedgedPublisher|the connection freezes|no answer|10 ms"
            "|PublisherClient: no answer within 1 s of the last publish|hedge delay (0.2 s)",
        ),
        # Nothing is as high as no answer.
        (lambda path: plots.draw_frozen(path, RUN, NO_ANSWERS), "no answer"),
        (
            lambda path: plots.draw_throughput(path, RATES),
            "emulator|server|official, 100 bytes|hedged, 100 bytes|messages per second",
        ),
        (
            lambda path: plots.draw_tails(path, [TAIL] * 3),
            "official|hedged|best possible|hedge delay|1 % stall for 2 s",
        ),
    ],
    ids=["demo", "frozen", "no answers", "throughput", "tails"],
)
def test_a_figure_says_what_was_drawn(
    tmp_path: Path, draw: Callable[[Path], None], words: str
) -> None:
    """Curves, lines, axes and titles are named in it."""
    path = tmp_path / "figure.svg"
    draw(path)
    drawn = set(re.findall(r"<!-- (.*) -->", path.read_text(encoding="utf-8")))
    assert set(words.split("|")) <= drawn


def test_the_suffix_names_the_format(tmp_path: Path) -> None:
    """In capitals too; other tests have SVG, and PNG."""
    draw_demo(tmp_path / "a.PDF")
    assert (tmp_path / "a.PDF").read_bytes().startswith(b"%PDF")
