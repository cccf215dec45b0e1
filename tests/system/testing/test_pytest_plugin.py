"""The fixture, as users get it: the guide's own examples, in a pytest run of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[3] / "docs" / "testing.md"

FRESH = '''
import os

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub.testing import FaultScript, ResetConnection


@pytest.mark.parametrize("run", [1, 2])
def test_publish(pubsub_server, run):
    """Each run has a server of its own, which clients find by themselves."""
    assert os.environ["PUBSUB_EMULATOR_HOST"] == pubsub_server.address
    pubsub_server.set_script(FaultScript(faults=[ResetConnection(times=1)]))
    with pubsub_v1.PublisherClient() as publisher:
        publisher.publish(pubsub_server.topic_path("orders"), b"x").result(10)
    assert [a.outcome for a in pubsub_server.attempts()] == ["dropped", "answered"]


def test_without_the_fixture():
    """The environment is as it was."""
    assert "PUBSUB_EMULATOR_HOST" not in os.environ
'''


def guide_files() -> dict[str, str]:
    """Return the guide's code blocks that begin with a file name, by that name."""
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    return dict(blocks)


def test_the_guides_tests_pass_and_servers_are_fresh(tmp_path: Path) -> None:
    """A project made of the guide's files passes, and each test has a server of its own."""
    files = guide_files()
    assert set(files) == {"conftest.py", "test_orders.py"}
    for name, content in {**files, "test_fresh.py": FRESH}.items():
        (tmp_path / name).write_text(content)
    run = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout
