"""``nox -s mutants``: mutmut's mutants of the core, each of which has to fail a test.

Here are a pytest plugin for the process that tests a mutant, and, as a command, a comparison of
those that live with tests/mutants.md. Where mutmut changes nothing: ``pyproject.toml`` says it of
texts; and it never does in docstrings, type hints and what stands outside of functions, such as
``__slots__`` and imports.
"""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import pytest
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

from hedged_pubsub._core import engine, wire

_MEMORY = 3 << 30  # bytes; a mutant may fill a list without end


def pytest_configure() -> None:
    """Let a mutant that wants all memory fail."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse ids that cannot be given to pytest as arguments: no mutant would meet these tests."""
    if odd := [item.nodeid for item in items if "\\" in item.nodeid]:
        raise pytest.UsageError(f"mutmut cannot name these tests: {odd}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Compute again what the modules computed before there was a mutant in them."""
    engine.TRANSITIONS = engine._table()  # type: ignore[misc]
    wire.topic_field.cache_clear()


def _states() -> dict[str, str]:
    """Return what became of each mutant."""
    found: dict[str, str] = {}
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        found |= {name: status_by_exit_code[code] for name, code in data.exit_code_by_key.items()}
    return found


def _change(mutant: str) -> str:
    """Return a mutant's function and what a line of it has become, as the list has it."""
    name = re.sub(r"^hedged_pubsub\.|\bx[_ǁ]|__mutmut_\d+$", "", mutant).replace("ǁ", ".")
    _, _, *lines = get_diff_for_mutant(mutant).splitlines()
    added = [line[1:].strip() for line in lines if line.startswith("+")]
    removed = [line[1:].strip() for line in lines if line.startswith("-")]
    return f"{name}: {' '.join(added) or 'without ' + ' '.join(removed)}"


def _listed() -> set[str]:
    """Return the changes that tests/mutants.md has a reason for."""
    changes: set[str] = set()
    function = ""
    for line in Path("tests/mutants.md").read_text().splitlines():
        if heading := re.fullmatch(r"## `(.+)`", line):
            function = heading[1]
        elif item := re.fullmatch(r"- `(.+)`", line):
            changes.add(f"{function}: {item[1]}")
    return changes


def main() -> str | None:
    """Print how many mutants live; return what is wrong about them, if anything is."""
    states = _states()
    tested = {mutant: state for mutant, state in states.items() if state != "not checked"}
    living = [one for one, state in tested.items() if state in ("survived", "no tests")]
    print(f"{len(tested)} mutants, {len(living)} live: {1 - len(living) / len(tested):.1%} killed")
    changes, listed = set(map(_change, living)), _listed()
    if len(tested) == len(states):
        for change in sorted(listed - changes):
            print(f"killed, so not to be listed: {change}")
    unlisted = sorted(changes - listed)
    return "\n".join(["not in tests/mutants.md:", *unlisted]) if unlisted else None


if __name__ == "__main__":
    sys.exit(main())
