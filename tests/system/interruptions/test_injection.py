"""An exception raised at each place where CPython looks for signals breaks nothing.

What is checked after each, by ``program.py``: the exception comes out of the call; what was
accepted before is stored, once; a later publish works and is answered; flow control admits as many
messages as its limit says; ``close()`` and ``os.fork()`` end promptly.
"""

from __future__ import annotations

import gc
import sys
import threading
from typing import Final

import pytest

from ..conftest import run_python
from . import program
from .places import TimeLimitError, interrupt, interrupt_collection
from .program import REACTIONS, SCENARIOS

_MOST_HARMS: Final = 3
"""So many places are named before a test fails; after a hang each takes seconds."""

_LONGEST: Final = 300
"""Seconds that one program may run; each of its steps is watched in there."""

_TOGETHER: Final = 5
"""So many scenarios share a process; to start one takes as long as dozens of places."""

_GROUPS: Final = [list(SCENARIOS)[n : n + _TOGETHER] for n in range(0, len(SCENARIOS), _TOGETHER)]


@pytest.mark.timeout((_MOST_HARMS + 1) * _LONGEST)
@pytest.mark.slow
@pytest.mark.parametrize("kind", REACTIONS)
@pytest.mark.parametrize("scenarios", _GROUPS, ids="; ".join)
def test_an_interruption_at_each_place(scenarios: list[str], kind: str) -> None:
    """Wherever a signal handler raises in a call, nothing is lost, broken or held up.

    Or where it publishes, flushes, closes or reads statistics; and that returns.
    """
    harms: list[str] = []
    left, first = scenarios, 1
    while len(harms) < _MOST_HARMS:
        arguments = ["-m", program.__name__, kind, str(first), *left]
        process = run_python(*arguments, timeout=_LONGEST)
        *lines, last = process.stdout.splitlines() or [""]
        if process.returncode == 0:
            break
        if process.returncode == 3:
            harm, place = f"{last}\n{process.stderr}".rstrip(), lines[-1]
        elif "Timeout" in process.stderr:
            harm, place = f"a hang\n{_main_stack(process.stderr)}", last
        else:
            pytest.fail(process.stdout + process.stderr)
        left = left[sum(line.endswith(" places") for line in lines) :]
        harms.append(f"{left[0]}, {place}: {harm}")
        number = place.partition(":")[0]
        if not number.isdigit():  # not even the call as it is
            break
        first = int(number) + 1
    assert not harms, "\n".join(["", *harms])


def _main_stack(stacks: str) -> str:
    """Return the main thread's stack, which ``faulthandler`` prints last."""
    return stacks[stacks.rindex("Thread 0x") :]


def test_the_places(request: pytest.FixtureRequest) -> None:
    """There is one on entry, after a call and on a jump back; none before the body of a ``with``.

    Inside of a Python-level ``__enter__`` there is one where the lock is held and not released.
    """
    lock = threading.Lock()
    condition = threading.Condition(lock)

    def call_and_jump() -> None:
        with lock:
            for _ in range(2):
                pass

    def notify() -> None:
        with condition:
            pass

    def raise_error(_: str) -> None:
        raise TimeLimitError

    def places(call: object) -> list[tuple[str, bool]]:
        assert callable(call)
        found: list[tuple[str, bool]] = []
        while True:
            end = interrupt(lambda: call(), len(found) + 1, raise_error)
            if end.place is None:
                assert end.raised is None
                return found
            assert isinstance(end.raised, TimeLimitError)
            found.append((end.place.partition(" in ")[2], lock.locked()))
            if lock.locked():
                lock.release()

    gc.disable()  # or there are places in what it calls back, such as Hypothesis
    request.addfinalizer(gc.enable)
    in_lock = places(call_and_jump)
    assert not any(locked for _, locked in in_lock)
    assert {place.partition(",")[0] for place, _ in in_lock} >= {"call_and_jump"}
    assert sum("JUMP" in place for place, _ in in_lock) == 2
    held = {place.partition(",")[0] for place, locked in places(notify) if locked}
    assert held == {"__enter__", "__exit__"}


def test_the_garbage_collections() -> None:
    """Each allocation of a list has one in it, and from Python 3.12 on an earlier or later one."""

    def allocate() -> list[object]:
        return [[len(str(number))] for number in range(5)]

    places: list[str] = []
    while end := interrupt_collection(allocate, len(places) + 1, lambda _: None).place:
        places.append(end.partition(" in ")[2])
    assert len(places) >= 5
    if sys.version_info < (3, 12):
        assert sum("BUILD_LIST" in place for place in places) >= 5
