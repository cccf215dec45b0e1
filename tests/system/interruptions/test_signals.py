"""A signal handler breaks nothing, wherever it raises, and wherever it calls the publisher.

What is checked after each interruption, by ``program.py``: the exception comes out of the call;
what was accepted before is stored, once; a later publish works and is answered; flow control admits
as many messages as its limit says; ``close()`` and ``os.fork()`` end promptly.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable

import pytest
from google.cloud.pubsub_v1.types import LimitExceededBehavior

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from ..conftest import TOPIC, Make, run_python
from . import fuzz, program
from .places import TimeLimitError, interrupt, interrupt_collection, raise_time_limit

_COUNT = os.environ.get("HEDGED_PUBSUB_INTERRUPTIONS", "60")
"""How many publishers are interrupted; 2,000 before a release."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["raise", "call", "collect"])
def test_an_interruption_at_each_place(kind: str) -> None:
    """Wherever a signal handler raises in a call, nothing is lost, broken or held up.

    Or where it publishes, flushes, closes or reads statistics; and that returns.
    """
    process = run_python("-m", program.__name__, kind, timeout=280)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
def test_interrupted_publishers_are_not_broken() -> None:
    """After a signal at a random time the publisher works, and has stored what it accepted.

    Also where the handler drained it before it raised, as programs do that are told to end.
    """
    # 0.3 s each, and a start.
    process = run_python("-m", fuzz.__name__, _COUNT, timeout=30 + 0.3 * int(_COUNT))
    assert process.stdout == f"{_COUNT} interrupted, 0 broken\n", process.stderr
    assert process.returncode == 0


def test_a_time_limit_while_publish_waits_for_room(server: PubSubServer, make: Make) -> None:
    """The limit comes out of ``publish()`` when it strikes, however often, and no room is lost."""
    options = program.limit(LimitExceededBehavior.BLOCK, 2)
    publisher = make(publisher_options=options, script=FaultScript(faults=[Stall(1.5)]))
    before = signal.signal(signal.SIGUSR1, raise_time_limit)
    futures = [publisher.publish(TOPIC, b"data") for _ in range(2)]

    def publish_late() -> None:
        strike = (threading.get_ident(), signal.SIGUSR1)
        threading.Timer(0.02, signal.pthread_kill, strike).start()
        publisher.publish(TOPIC, b"late")

    for _ in range(5):
        with pytest.raises(TimeLimitError):
            publish_late()
    assert not any(future.done() for future in futures)
    signal.signal(signal.SIGUSR1, before)
    server.set_script(FaultScript())
    futures += [publisher.publish(TOPIC, b"data") for _ in range(2)]
    assert len({future.result(timeout=5) for future in futures}) == 4
    assert [message.data for message in server.messages()] == [b"data"] * 4


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

    def places(call: Callable[[], None]) -> list[tuple[str, bool]]:
        found: list[tuple[str, bool]] = []
        while place := interrupt(lambda: call(), len(found) + 1, raise_time_limit).place:
            found.append((place.partition(" in ")[2], lock.locked()))
            if lock.locked():
                lock.release()
        return found

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
