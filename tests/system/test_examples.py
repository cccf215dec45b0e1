"""The examples run as they stand, each in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hedged_pubsub.testing import PubSubServer

from .conftest import complaints, run_python

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"

# What an example itself does is to be up to date; Google's libraries announce what they will drop.
_STRICTLY = (
    "-X",
    "dev",
    "-W",
    "default::DeprecationWarning:__main__",
    "-W",
    "ignore::FutureWarning",
)

# As in a project of the user's, which has neither this one's settings nor its plugins.
_PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(EXAMPLES))

# What each example says when it did what it is about.
OUTPUT = {
    "deduplicate.py": "50 events kept, 1 duplicates dropped, the total is 1225",
    "fastapi_app.py": "100 orders are stored, 9 of them thanks to a hedge",
    "flush_at_exit.py": "1000 of 1000 messages are stored",
    "own_tests.py": "3 passed",
    "prometheus_metrics.py": "3 hedges won",
    "publish.py": "1 hedges sent, 1 of them won",
    "retry_model_armor.py": "the prompt was looked at: MATCH_FOUND",
    "retry_publisher.py": "30 orders published, 1 thanks to a hedge",
    "smoke.py": "received          50   and 0 duplicates",
}

# It is for a topic that there is.
_SMOKE = ("smoke", "--project", "test", "--messages", "50")


def test_every_example_is_run_here() -> None:
    """An example that is added later does not go untested."""
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(OUTPUT)


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """Run each example, two at a time."""

    def run(name: str) -> subprocess.CompletedProcess[str]:
        runner = _PYTEST if name == "own_tests.py" else ()
        arguments = [*_STRICTLY, *runner, str(EXAMPLES / name)]
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        if name == "smoke.py":
            arguments += _SMOKE
            environment["PUBSUB_EMULATOR_HOST"] = server.address
        return run_python(*arguments, timeout=120, **environment)

    with ThreadPoolExecutor(2) as pool, PubSubServer() as server:
        server.create_topic("smoke")
        yield {name: pool.submit(run, name) for name in OUTPUT}


@pytest.mark.parametrize("name", OUTPUT)
def test_example_runs(name: str, runs: dict[str, Future[subprocess.CompletedProcess[str]]]) -> None:
    """An example ends well, prints what it promises, and complains about nothing."""
    done = runs[name].result()
    assert (done.returncode, complaints(done.stderr)) == (0, ""), done.stdout + done.stderr
    assert OUTPUT[name] in done.stdout


def test_smoke_says_in_one_line_what_is_wrong() -> None:
    """A topic that is not there ends the run before anything is published."""
    with PubSubServer() as server:
        environment = {"PUBSUB_EMULATOR_HOST": server.address, "GOOGLE_CLOUD_PROJECT": "test"}
        done = run_python(str(EXAMPLES / "smoke.py"), "none", timeout=60, **environment)
        assert (done.returncode, done.stdout) == (1, "")
        wrong = "smoke.py: NotFound: 404 projects/test/topics/none does not exist\n"
        assert complaints(done.stderr) == wrong
        assert server.attempts() == ()
