"""The fixture, as users get it: the guide's own examples, in a pytest run of their own."""

from __future__ import annotations

import re
from pathlib import Path

from tests.system.conftest import run_python

GUIDE = Path(__file__).parents[3] / "docs" / "testing.md"

MORE = """
import os

from hedged_pubsub.testing import FaultScript, ResetConnection


def test_with_the_fixture(pubsub_server):
    assert os.environ["PUBSUB_EMULATOR_HOST"] == pubsub_server.address
    pubsub_server.set_script(FaultScript(faults=[ResetConnection()]))  # is refused without a relay


def test_without_the_fixture():
    assert "PUBSUB_EMULATOR_HOST" not in os.environ
"""


def test_the_guides_tests_pass_with_fresh_servers(tmp_path: Path) -> None:
    """A project made of the guide's files passes, and each test has a server of its own."""
    # The guide's code blocks that begin with a file name, by that name.
    files = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", GUIDE.read_text(), re.M | re.S))
    assert set(files) == {"conftest.py", "test_orders.py"}
    for name, content in {**files, "test_more.py": MORE}.items():
        (tmp_path / name).write_text(content)
    arguments = ["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    run = run_python("-m", "pytest", *arguments, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout
