"""The code of the README and of the documentation runs as it stands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from hedged_pubsub.testing import PubSubServer
from tests.system.docs import hidden
from tests.system.docs.page import PAGES, ROOT, Page, PageError, page_name

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """Every block of a page runs, in order, and complains about nothing; nor does the server.

    In a process and a directory of its own, where topics come into being when they are used.
    """
    with PubSubServer(auto_create_topics=True) as server:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tests.system.docs.page", str(page)],
            cwd=tmp_path,
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
    assert (process.returncode, errors) == (0, ""), out + errors
    assert {attempt.outcome for attempt in server.attempts()} <= {"answered"}


def test_a_failure_names_the_line_of_the_page(tmp_path: Path) -> None:
    """A block that raises ends the page with a traceback that leads to it."""
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nawait_me = 1\n\n1 / 0\n```\n", encoding="utf-8")
    with pytest.raises(ZeroDivisionError) as caught:
        Page(page).run()
    last = traceback.extract_tb(caught.tb)[-1]
    assert (last.filename, last.lineno, last.line) == (str(page), 6, "1 / 0")


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("```python\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0\n```", "division by zero"),
        ("* In a list:\n\n  ```python\n  undefined\n  ```", "name 'undefined' is not defined"),
        ("```python\n# test_it.py\ndef test_it():\n    assert False\n```", "1 failed"),
        ("```ruby\nputs 1\n```", "page.md:4: nobody knows how to run a block in 'ruby'"),
        ("    indented = 1", "page.md:3: nobody knows how to run a block in ''"),
        ("```json\n{,}\n```", "Expecting property name"),
        ("```console\n$ hedged-pubsub demo --stalls 3\n```", "--stalls"),
        ("```console\n$ hedged-pubsub bench --batches 0\n```", "--batches"),
        ("```console\n$ hedged-pubsub serve\nset HOST=127.0.0.1:1\n```", "the page shows\nset"),
        ("```console\nhedged-pubsub serve\n```", "needs a command, after '$ '"),
        ("```console\n$ pip install 'hedged-pubsub[all]'\n```", "no such extras: {'all'}"),
        ("```sh\npip install hedged-pub-sub\n```", "hedged-pub-sub"),
        ("```sh\nmake\n```", "nobody knows how to check this command"),
        ("```diff\n-old = 1\n+new = old + missing\n```", "name 'missing' is not defined"),
        ("```{literalinclude} ../src/x.py\n```", "block in '{literalinclude}'"),
        ("```{eval-rst}\n.. code-block:: python\n```", "block in '{eval-rst}'"),
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
        Page(page).run()


def test_what_is_left_of_a_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set-up does not outlive its block, nor a page that was renamed."""
    assert hidden.SETUP.keys() <= {page_name(page) for page in PAGES}
    page = tmp_path / "page.md"
    page.write_text("# A page\n", encoding="utf-8")
    monkeypatch.setitem(hidden.SETUP, "page.md", {"gone = True": "1"})
    with pytest.raises(PageError, match=r"page\.md has no blocks that begin: .'gone = True'"):
        Page(page).run()
