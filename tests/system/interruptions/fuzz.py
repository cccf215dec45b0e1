"""Interrupts publishers with real signals at random times, and counts the broken ones.

Run as ``python -m tests.system.interruptions.fuzz COUNT [SEED]``. Prints a line for each broken
publisher and then the counts; ends with all stacks on stderr if something hangs.
"""

from __future__ import annotations

import concurrent.futures
import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Final

from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior, PublisherOptions

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import PubSubServer

from .places import TimeLimitError
from .program import HANGS, PROMPTLY, Futures, HarmError, check_fork, limit

_SMALL_BATCHES: Final = BatchSettings(max_messages=5, max_latency=0.005)
_LIMIT: Final = 20
_MOST_CALLS: Final = 2000
"""More than there is time for until the signal comes."""

_MOST_BROKEN: Final = 5
"""So many are enough: each takes seconds."""


def _publish(publisher: HedgedPublisher, topic: str, accepted: Futures) -> None:
    for _ in range(_MOST_CALLS):
        data = b"%d" % len(accepted)
        accepted[data] = publisher.publish(topic, data, kind="new")


def _flush(publisher: HedgedPublisher, topic: str, accepted: Futures) -> None:
    for _ in range(_MOST_CALLS):
        data = b"%d" % len(accepted)
        accepted[data] = publisher.publish(topic, data)
        publisher.flush()


_Call = Callable[[HedgedPublisher, str, Futures], None]

# What is interrupted, and the most seconds until then.
_CALLS: Final[tuple[tuple[_Call, float], ...]] = (
    (_publish, 0.004),
    (_flush, 0.01),
    (lambda publisher, *_: publisher.stop(), 3e-4),
    (lambda publisher, *_: publisher.close(), 0.006),
    (lambda publisher, *_: publisher.__exit__(None, None, None), 0.006),
)

_OPTIONS: Final = (
    PublisherOptions(),
    limit(LimitExceededBehavior.ERROR, _LIMIT),
    limit(LimitExceededBehavior.BLOCK, _LIMIT),
)


def interrupt_once(server: PubSubServer, topic: str, draw: random.Random) -> None:
    """Interrupt a new publisher; raise `HarmError` if something is broken."""
    call, longest = draw.choice(_CALLS)
    options = draw.choice(_OPTIONS)
    error = draw.choice((TimeLimitError("time is up"), KeyboardInterrupt("Ctrl-C")))
    server.clear()
    publisher = HedgedPublisher(_SMALL_BATCHES, options)
    accepted: Futures = {}
    for _ in range(3):
        data = b"%d" % len(accepted)
        accepted[data] = publisher.publish(topic, data)

    def handle(_: int, frame: FrameType | None) -> None:
        # Some finalizers, gRPC's for one, swallow whatever is raised in them: once more then.
        if any(one.f_code.co_name == "__del__" for one, _line in traceback.walk_stack(frame)):
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
        else:
            raise error

    # And the interpreter drops what is raised in a callback of a weak reference.
    sys.unraisablehook = lambda _: signal.setitimer(signal.ITIMER_REAL, 1e-3)
    signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(2e-5, longest))
        call(publisher, topic, accepted)
        for _ in range(400):  # one long sleep would not end if another thread got the signal
            time.sleep(0.005)
    except (TimeLimitError, KeyboardInterrupt):
        pass
    else:
        raise HarmError(f"the error did not come out of call {_CALLS.index((call, longest))}")
    publisher.hedging_stats()
    if call in (_publish, _flush):
        publisher.flush(timeout=PROMPTLY)
        later = [publisher.publish(topic, b"later") for _ in range(_LIMIT)]
        if any(isinstance(future.exception(PROMPTLY), Exception) for future in later):
            raise HarmError("flow control refuses what is within the limit")
    may_fail = (call, longest) in _CALLS[3:]  # it was closed
    give_up = time.monotonic() + PROMPTLY
    ids: dict[bytes, str] = {}
    for data, future in accepted.items():
        failure = future.exception(max(0, give_up - time.monotonic()))
        if failure is None:
            ids[data] = future.result()
        elif not may_fail and not isinstance(failure, FlowControlLimitError):
            raise HarmError(f"message {data!r} failed: {failure!r}")
    publisher.close(timeout=PROMPTLY)
    stored = {message.data: message.message_id for message in server.messages()}
    if not ids.items() <= stored.items():
        raise HarmError(f"{ids.items() - stored.items()} are not what is stored")


def main(count: str, seed: str = "1") -> int:
    """Interrupt so many publishers; return how many were broken."""
    draw = random.Random(int(seed))
    broken = 0
    with PubSubServer(set_emulator_host=True) as server:
        topic = server.create_topic("orders")
        for number in range(int(count)):
            faulthandler.dump_traceback_later(HANGS, exit=True)
            try:
                interrupt_once(server, topic, draw)
                check_fork()
            except (HarmError, RuntimeError, concurrent.futures.TimeoutError) as harm:
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
