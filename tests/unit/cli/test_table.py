"""The table on a terminal, and the bars on stderr."""

from __future__ import annotations

import pytest

from hedged_pubsub.cli.report import Report, client_result, hedged_result
from hedged_pubsub.cli.table import print_report, progress_bars

REPORT = Report(
    plain=client_result([0.001, 0.002, 2.5], requests=3),
    hedged=hedged_result(
        [0.001, 0.002, 0.125],
        requests=4,
        plain_requests=3,
        hedges_sent=17,
        hedges_won=16,
        hedges_suppressed=15,
        duplicates=14,
    ),
)


def test_the_table_shows_every_number_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row holds its label and its numbers, and the words follow."""
    print_report(REPORT)
    output = capsys.readouterr().out
    rows = {}
    for line in output.splitlines():
        cells = [cell.strip() for cell in line.strip("│┃ ").split("│")]
        if len(cells) == 3:
            rows[cells[0]] = tuple(cells[1:])
    assert rows == {
        "p50": ("2.0 ms", "2.0 ms"),
        "p90": ("2,500.0 ms", "125.0 ms"),
        "p99": ("2,500.0 ms", "125.0 ms"),
        "p99.9": ("2,500.0 ms", "125.0 ms"),
        "max": ("2,500.0 ms", "125.0 ms"),
        "RPCs sent": ("3", "4"),
        "extra requests": ("", "33.3 %"),
        "hedges sent": ("", "17"),
        "hedges won": ("", "16"),
        "hedges suppressed": ("", "15"),
        "duplicates stored": ("", "14"),
    }
    assert REPORT.in_words().split(";")[0] in output.replace("\n", " ")


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Stdout stays free for the result."""
    with progress_bars() as progress:
        task = progress.add_task("PublisherClient", total=10)
        progress.update(task, completed=10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "PublisherClient" in captured.err
    assert "10/10" in captured.err
