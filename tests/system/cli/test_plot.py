"""The latency curves: their points, and files in each format."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedged_pubsub.cli.plot import draw, survival


def test_survival_is_the_share_at_least_that_slow() -> None:
    """All publishes are at least as slow as the fastest, one in four as the slowest of four."""
    milliseconds, share = survival([0.5, 0.001, 0.25, 0.002])
    assert milliseconds == [1.0, 2.0, 250.0, 500.0]
    assert share == [1.0, 0.75, 0.5, 0.25]


def test_survival_never_reaches_zero() -> None:
    """A logarithmic axis could not show the slowest publish otherwise."""
    assert survival([2.0])[1] == [1.0]


@pytest.mark.parametrize(
    ("name", "magic"),
    [
        ("tail.png", b"\x89PNG"),
        ("a.pdf", b"%PDF"),
        ("a.svg", b"<?xml"),
        ("A.PNG", b"\x89PNG"),
    ],
)
def test_draws_a_file_of_the_format_that_its_suffix_names(
    tmp_path: Path, name: str, magic: bytes
) -> None:
    """Each accepted suffix gives a file of that format."""
    path = tmp_path / name
    draw(path, plain=[0.005, 2.0], hedged=[0.005, 0.105], hedge_delay=0.1, title="two publishes")
    assert path.read_bytes().startswith(magic)


def test_the_figure_says_what_was_drawn(tmp_path: Path) -> None:
    """Curves, hedge delay, axes and title are named in the figure."""
    path = tmp_path / "tail.svg"
    draw(path, plain=[0.005, 2.0], hedged=[0.005, 0.105], hedge_delay=0.25, title="two publishes")
    drawn = path.read_text(encoding="utf-8")
    for words in (
        "PublisherClient",
        "HedgedPublisher",
        "hedge delay (0.25 s)",
        "two publishes",
        "latency, counted from the scheduled send time",
        "share of publishes at least this slow",
    ):
        assert f"<!-- {words} -->" in drawn


def test_a_folder_that_is_gone_is_an_os_error(tmp_path: Path) -> None:
    """The demo turns this into one line; the table is printed by then."""
    with pytest.raises(OSError, match="missing"):
        draw(tmp_path / "missing" / "t.png", plain=[1.0], hedged=[1.0], hedge_delay=0.1, title="")
