"""Interrupts publishers with real signals at random times, and counts the broken ones.

Run as ``python -m tests.system.interruptions.fuzz COUNT [SEED]``. Prints a line for each broken
publisher and then the counts; ends with all stacks on stderr if something hangs.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Final

from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import PubSubServer

from .places import Interruption, TimeLimitError
from .program import HARMS, REACTIONS, Futures, Scenario, check_fork, interrupt_once, limit

_MOST_CALLS: Final = 2000
"""More than there is time for until the signal comes."""

_MOST_BROKEN: Final = 5
"""So many are enough: each takes seconds."""


def _publish(
    publisher: HedgedPublisher, topic: str, accepted: Futures, *, flushes: bool = False
) -> None:
    for number in range(_MOST_CALLS):
        data = b"%d" % number
        accepted[data] = publisher.publish(topic, data)
        if flushes:
            publisher.flush()


# The most seconds until a signal, and what it interrupts.
_CALLS: Final[list[tuple[float, dict[str, Any]]]] = [
    (0.004, {"call": _publish}),
    (0.01, {"call": partial(_publish, flushes=True)}),
    (3e-4, {"call": lambda publisher, *_: publisher.stop(), "stops": True}),
    (0.006, {"call": lambda publisher, *_: publisher.close(), "stops": True, "closes": True}),
]
_OPTIONS: Final[list[dict[str, Any]]] = [
    {},
    {"options": limit(LimitExceededBehavior.ERROR, 20), "limit": 20, "refuses": True},
    {"options": limit(LimitExceededBehavior.BLOCK, 20), "limit": 20},
]


def interrupt_after(
    seconds: float, call: Callable[[], object], handle: Callable[[str], object]
) -> Interruption:
    """Call something, and in a signal's handler something else, after which the handler raises."""
    drained: list[bool] = []

    def strike(_: int, frame: FrameType | None) -> None:
        # Some finalizers, gRPC's for one, swallow whatever is raised in them: once more then.
        if any(one.f_code.co_name == "__del__" for one, _line in traceback.walk_stack(frame)):
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
            return
        if not drained:
            handle("")
        drained.append(True)
        raise TimeLimitError

    # And the interpreter drops what is raised in a callback of a weak reference.
    sys.unraisablehook = lambda _: signal.setitimer(signal.ITIMER_REAL, 1e-3)
    signal.signal(signal.SIGALRM, strike)
    raised = None
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            call()
        except RuntimeError:  # the handler has closed it, and its own error was dropped
            if not drained:
                raise
        for _ in range(400):  # one long sleep would not end if another thread got the signal
            time.sleep(0.005)
    except (TimeLimitError, KeyboardInterrupt) as error:
        raised = error
    return Interruption(place="anywhere", raised=raised, lost=False)


def main(count: str, seed: str = "1") -> int:
    """Interrupt so many publishers; return how many were broken."""
    draw = random.Random(int(seed))
    batch = BatchSettings(max_messages=5, max_latency=0.005)
    broken = 0
    with PubSubServer(set_emulator_host=True) as server:
        for number in range(int(count)):
            longest, call = draw.choice(_CALLS)
            scenario = Scenario(**call, **draw.choice(_OPTIONS), earlier=3, batch=batch)
            kind = draw.choice(["raise", "drain"])
            reaction = draw.choice(list(REACTIONS[kind]))
            find = partial(interrupt_after, draw.uniform(2e-5, longest))
            try:
                interrupt_once(server, scenario, kind, reaction, find)
                check_fork()
            except HARMS as harm:
                broken += 1
                print(f"{number}: {harm!r}", flush=True)
                if broken == _MOST_BROKEN:
                    break
        faulthandler.cancel_dump_traceback_later()
    print(f"{number + 1} interrupted, {broken} broken", flush=True)
    return broken


if __name__ == "__main__":
    # Not through the end of the interpreter: what was broken would hold it up.
    status = min(main(*sys.argv[1:]), 100)
    os._exit(status)
