"""The code of the README and of the documentation runs as it stands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hedged_pubsub.testing import PubSubServer
from tests.system.docs import hidden
from tests.system.docs.blocks import ROOT, page_name, pages
from tests.system.docs.hidden import NOT_RUN, SETUP
from tests.system.docs.run_page import PageRunner, WrongBlockError

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """A server for a page: topics come into being when something is published to them."""
    with PubSubServer(auto_create_topics=True) as running:
        yield running


def run(page: Path, server: PubSubServer, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a page in a process and a directory of its own, where clients use the server."""
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "tests.system.docs.run_page", str(page)],
        cwd=directory,
        env=os.environ | {"PUBSUB_EMULATOR_HOST": server.address, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the servers that the page started
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


@pytest.mark.parametrize("page", pages(), ids=page_name)
def test_the_code_of_a_page_runs(page: Path, server: PubSubServer, tmp_path: Path) -> None:
    """Every block of a page runs, in order, and complains about nothing; nor does the server."""
    done = run(page, server, tmp_path)

    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert {attempt.outcome for attempt in server.attempts()} <= {"answered"}


def test_a_failure_names_the_line_of_the_page(server: PubSubServer, tmp_path: Path) -> None:
    """A block that raises ends the page with a traceback that leads to it."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nawait_me = 1\n\n1 / 0\n```\n", encoding="utf-8")
    done = run(page, server, tmp_path)

    assert done.returncode == 1
    assert f'File "{page}", line 6, in <module>\n    1 / 0\n' in done.stderr


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("```python\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0\n```", "division by zero"),
        ("* In a list:\n\n  ```python\n  undefined\n  ```", "name 'undefined' is not defined"),
        ("```python\n# test_it.py\ndef test_it():\n    assert False\n```", "1 failed"),
        ("```ruby\nputs 1\n```", "page.md:4: nobody knows how to run a block in 'ruby'"),
        ("    indented = 1", "page.md:3: nobody knows how to run a block in ''"),
        ("```json\n{,}\n```", "Expecting property name"),
        ("```console\n$ hedged-pubsub demo --stalls 3\n```", "unrecognized arguments: --stalls"),
        ("```console\n$ hedged-pubsub bench --batches 0\n```", "page.md:4: hedged-pubsub bench"),
        ("```console\n$ hedged-pubsub serve\nset HOST=127.0.0.1:1\n```", "the page shows\nset"),
        ("```console\nhedged-pubsub serve\n```", "needs a command, after '$ '"),
        ("```console\n$ pip install 'hedged-pubsub[all]'\n```", "no such extras: {'all'}"),
        ("```sh\npip install hedged-pub-sub\n```", "hedged-pub-sub is not in pyproject.toml"),
        ("```sh\nmake\n```", "nobody knows how to check this command"),
        ("```diff\n-old = 1\n+new = old + missing\n```", "name 'missing' is not defined"),
        ("```{literalinclude} ../src/x.py\n```", "what it shows has no test"),
        ("```{eval-rst}\n.. code-block:: python\n```", "write code as a block of the page"),
    ],
)
def test_wrong_code_is_found(
    block: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page with something wrong in it fails, and the failure says what."""
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n", encoding="utf-8")

    with pytest.raises(Exception, match=re.escape(complaint)):
        PageRunner(page).run()


@pytest.mark.parametrize("table", ["SETUP", "NOT_RUN"])
def test_what_is_left_of_a_block_is_found(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set-up for a block, or a reason not to run it, does not outlive the block."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n", encoding="utf-8")
    monkeypatch.setitem(getattr(hidden, table), "page.md", {"gone = True": "1"})

    with pytest.raises(WrongBlockError, match=r"page\.md has no blocks that begin: .'gone = True'"):
        PageRunner(page).run()


def test_only_pages_that_exist_have_set_up() -> None:
    """Nothing is left of a page that was renamed; a page itself knows its blocks."""
    assert {*SETUP, *NOT_RUN} <= {page_name(page) for page in pages()}
    assert all(reason for reasons in NOT_RUN.values() for reason in reasons.values())
