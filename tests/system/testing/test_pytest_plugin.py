"""The fixtures as a project of the user's has them, which has the package installed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.system.conftest import run_python

ROOT = Path(__file__).parents[3]

CONFTEST = """\
import sys
assert "hedged_pubsub.testing.pytest_plugin" in sys.modules
assert not {"grpc", "google"} & {name.split(".")[0] for name in sys.modules}
pytest_plugins = ["hedged_pubsub.testing.pytest_plugin"]
"""

TESTS = """\
import pytest
from google.cloud.pubsub_v1 import PublisherClient
from hedged_pubsub import AsyncHedgedPublisher


def test_the_innermost_server_is_used(
    session_pubsub_server, package_pubsub_server, module_pubsub_server, class_pubsub_server,
    pubsub_server,
):
    with PublisherClient() as publisher:
        publisher.publish(pubsub_server.topic_path("orders"), b"one").result(timeout=10)
    assert [message.data for message in pubsub_server.messages()] == [b"one"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("number", [1, 2])
async def test_tests_share_a_server(module_pubsub_server, number):
    async with AsyncHedgedPublisher() as publisher:
        await publisher.publish(module_pubsub_server.topic_path("orders"), b"data")
    assert len(module_pubsub_server.messages()) == number
"""


def test_fixtures_of_all_scopes_need_no_import(tmp_path: Path) -> None:
    """Nor is one an error; async tests have them, too, and pytest starts without gRPC."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (entry,) = re.findall(r'^\[project\.entry-points\.pytest11\]\n"(.*)" = "(.*)"$', project, re.M)
    installed = tmp_path / "site" / "hedged_pubsub_here-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: hedged-pubsub-here\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[pytest11]\n{} = {}\n".format(*entry))
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(CONFTEST)
    (tests / "test_orders.py").write_text(TESTS)
    arguments = ("-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "-W", "error")
    path = os.pathsep.join([str(installed.parent), str(ROOT / "src")])
    done = run_python(
        *arguments, "-W", "ignore::FutureWarning", str(tests), timeout=60, PYTHONPATH=path
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
