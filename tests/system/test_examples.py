"""The examples run as they stand, each in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

# What each example says when it did what it is about.
OUTPUT = {
    "deduplicate.py": "50 events kept, 1 duplicates dropped",
    "fastapi_app.py": "100 orders are stored, 9 of them thanks to a hedge",
    "flush_at_exit.py": "1000 of 1000 messages are stored",
    "own_tests.py": "3 passed",
    "prometheus_metrics.py": "3 hedges won",
    "publish.py": "1 hedges sent, 1 of them won",
    "retry_model_armor.py": "the prompt was looked at: MATCH_FOUND",
    "retry_publisher.py": "30 orders published, 1 thanks to a hedge",
}


def test_every_example_is_run_here() -> None:
    """An example that is added later does not go untested."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(OUTPUT)


@pytest.mark.parametrize("name", OUTPUT)
def test_example_runs(name: str) -> None:
    """An example ends well, prints what it promises, and complains about nothing."""
    runner = ["-m", "pytest", "-p", "no:cacheprovider"] if name == "own_tests.py" else []
    done = subprocess.run(  # noqa: S603
        [sys.executable, *runner, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert OUTPUT[name] in done.stdout
