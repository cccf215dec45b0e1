"""What the demo decides before it starts anything."""

from __future__ import annotations

import sys

import pytest

from hedged_pubsub.__main__ import main
from hedged_pubsub.cli.demo import warm_up_publishes


@pytest.mark.parametrize(
    ("max_tokens", "refill_ratio", "publishes"),
    [(50, 0.1, 500), (1, 0.2, 200), (50, 0.07, 715), (250, 0.001, 1000)],
)
def test_warm_up_fills_the_bucket_within_bounds(
    max_tokens: int, refill_ratio: float, publishes: int
) -> None:
    """Enough successes for a full bucket, at least 200, at most 1,000."""
    assert warm_up_publishes(max_tokens=max_tokens, refill_ratio=refill_ratio) == publishes


@pytest.mark.parametrize(
    ("missing", "options", "extras"),
    [
        (["rich"], [], "[cli]"),
        (["rich"], ["--json"], "[cli]"),
        (["matplotlib"], ["--plot", "tail.png"], "[plot]"),
        (["rich", "matplotlib"], ["--plot", "tail.png"], "[cli,plot]"),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command_that_installs_it(
    missing: list[str],
    options: list[str],
    extras: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The demo refuses before it measures for a minute and then cannot show the result."""
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert f"pip install 'hedged-pubsub{extras}'" in captured.err
