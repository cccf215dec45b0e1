"""Interrupts calls at one place after the other, and checks what became of each.

Run as ``python -m tests.system.interruptions.program raise|call|collect FIRST SCENARIO...``: the
handler of the signal raises, or it calls the publisher, or another thread does that in a garbage
collection. Prints each scenario and each place, of the first scenario those from ``FIRST`` on. Ends
with status 0 when the calls have no further place, and else after the first one that did harm: with
status 3 and the reason on its last line, or with status 1 and all stacks on stderr after a hang.
"""

from __future__ import annotations

import concurrent.futures
import faulthandler
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
from google.api_core.retry import Retry
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import PubSubServer

from .places import Interruption, TimeLimitError, interrupt, interrupt_collection

HANGS: Final = 8.0
"""Seconds after which an interruption, with all that is checked after it, counts as a hang."""

PROMPTLY: Final = 4.0
"""Seconds that any one step may take; it waits for milliseconds."""

_BRIEFLY: Final = BatchSettings(max_messages=100, max_latency=0.01)
_UNTIL_FLUSHED: Final = BatchSettings(max_messages=100, max_latency=float("inf"))

_NO_OPTIONS: Final = PublisherOptions()

GRPC_FORKS: Final = tuple(int(part) for part in grpc.__version__.split(".")[:3]) >= (1, 82, 1)
"""Before, gRPC closed every channel in a forked child, which a server's handlers could hang."""

Futures = dict[bytes, Any]


# Interrupted publishers, which a fork is to find alive; it takes longer than an interruption.
_until_fork: Final[list[HedgedPublisher]] = []
_BETWEEN_FORKS: Final = 20


class HarmError(Exception):
    """What an interruption has broken."""


def limit(behavior: LimitExceededBehavior, messages: int) -> PublisherOptions:
    """Make options that let so many messages be under way."""
    return PublisherOptions(
        flow_control=PublishFlowControl(
            message_limit=messages, byte_limit=10**9, limit_exceeded_behavior=behavior
        )
    )


def _publish(publisher: HedgedPublisher, topic: str, **arguments: Any) -> object:
    return publisher.publish(topic, b"interrupted", **arguments)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is interrupted, and in which state the publisher is then."""

    call: Callable[[HedgedPublisher, str], object]
    earlier: int = 2  # so many messages were accepted before
    batch: BatchSettings = _BRIEFLY
    options: PublisherOptions = _NO_OPTIONS
    limit: int | None = None  # of messages, if flow control counts
    refuses: bool = False  # flow control refuses the message
    flushed_after: float | None = None  # seconds until another thread sends what is open
    stops: bool = False  # nothing can be published afterwards
    closes: bool = False  # what was accepted may fail, as the publisher was closed before


def _limited(behavior: LimitExceededBehavior, **arguments: Any) -> Scenario:
    # Nothing is sent by itself, so that all of the limit is in use at the same time.
    return Scenario(
        call=_publish, batch=_UNTIL_FLUSHED, options=limit(behavior, 3), limit=3, **arguments
    )


SCENARIOS: Final[dict[str, Scenario]] = {
    "first publish": Scenario(call=_publish, earlier=0),
    "publish into an open batch": Scenario(call=_publish),
    "publish that fills a batch": Scenario(
        call=_publish, batch=BatchSettings(max_messages=3, max_latency=0.01)
    ),
    "publish that does not fit": Scenario(
        call=_publish, batch=BatchSettings(max_bytes=100, max_latency=0.01)
    ),
    "publish with attributes": Scenario(call=partial(_publish, kind="new", source=b"shop")),
    "publish with its own retry": Scenario(
        call=partial(_publish, retry=Retry(timeout=30), timeout=20)
    ),
    "publish within limits (ERROR)": _limited(LimitExceededBehavior.ERROR, earlier=1),
    "publish within limits (BLOCK)": _limited(LimitExceededBehavior.BLOCK, earlier=1),
    "publish above the limit (ERROR)": _limited(
        LimitExceededBehavior.ERROR, earlier=3, refuses=True
    ),
    "publish that waits (BLOCK)": _limited(
        LimitExceededBehavior.BLOCK, earlier=3, flushed_after=0.01
    ),
    "flush": Scenario(call=lambda publisher, _: publisher.flush()),
    "stop": Scenario(call=lambda publisher, _: publisher.stop(), stops=True),
    "close": Scenario(call=lambda publisher, _: publisher.close(), stops=True, closes=True),
    "close with a timeout": Scenario(
        call=lambda publisher, _: publisher.close(timeout=PROMPTLY), stops=True, closes=True
    ),
    "the end of a with block": Scenario(
        call=lambda publisher, _: publisher.__exit__(None, None, None), stops=True, closes=True
    ),
}


def _raise(error: BaseException) -> object:
    raise error


def _read_and_publish(publisher: HedgedPublisher, topic: str) -> object:
    publisher.hedging_stats()
    return publisher.publish(topic, b"from the handler")


_numbers = itertools.count()

Reaction = Callable[[HedgedPublisher, str], object]

REACTIONS: Final[dict[str, dict[str, Reaction]]] = {
    "raise": {
        "a time limit": lambda *_: _raise(TimeLimitError("time is up")),
        "Ctrl-C": lambda *_: _raise(KeyboardInterrupt("Ctrl-C")),
    },
    "call": {
        "publish()": _read_and_publish,
        "flush()": lambda publisher, _: publisher.flush(),
        "close()": lambda publisher, _: publisher.close(),
    },
}
"""What the handler of the signal does."""


def _on_another_thread(react: Reaction) -> Reaction:
    def run(publisher: HedgedPublisher, topic: str) -> object:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(react, publisher, topic).result()

    return run


# That is what runs there most often: the collector calls Python code, and threads are switched.
REACTIONS["collect"] = {
    name: _on_another_thread(react) for name, react in REACTIONS["call"].items()
}


def interrupt_once(
    server: PubSubServer, scenario: Scenario, number: int, kind: str, reaction: str
) -> Interruption:
    """Interrupt a new publisher's call at a place; raise `HarmError` if something is broken."""
    server.clear()
    # Its own: what an interrupted close() has given up may be stored after the clearing.
    topic = server.create_topic(f"orders-{next(_numbers)}")
    publisher = HedgedPublisher(scenario.batch, scenario.options)
    _until_fork.append(publisher)
    accepted: Futures = {}
    for earlier in range(scenario.earlier):
        data = b"earlier %d" % earlier
        accepted[data] = publisher.publish(topic, data)
    if scenario.flushed_after is not None:
        threading.Timer(scenario.flushed_after, publisher.flush, [PROMPTLY]).start()

    def handle(place: str) -> None:
        os.write(1, f"{number}: {place}\n".encode())
        try:
            result = react(publisher, topic)
        except RuntimeError:  # it was stopped
            if not (scenario.stops and reaction == "publish()"):
                raise
        else:
            if reaction == "publish()" and not scenario.refuses:
                accepted[b"from the handler"] = result

    react = REACTIONS[kind][reaction]
    find = interrupt_collection if kind == "collect" else interrupt
    end = find(partial(scenario.call, publisher, topic), number, handle)
    stopped = scenario.stops or (reaction == "close()" and end.place is not None)
    if end.place is None:
        if end.raised is not None:
            raise end.raised
    elif kind == "raise":
        if not (isinstance(end.raised, (TimeLimitError, KeyboardInterrupt)) or end.lost):
            raise HarmError(f"the error did not come out of the call, but {end.raised!r}")
    elif not (end.raised is None or (stopped and isinstance(end.raised, RuntimeError))):
        raise HarmError(f"the call raised {end.raised!r}")
    if end.result is not None:
        error = end.result.exception(PROMPTLY) if stopped else None
        if error is None and not scenario.refuses:
            accepted[b"interrupted"] = end.result
    publisher.hedging_stats()
    if not stopped:
        if scenario.limit is not None:
            publisher.flush(timeout=PROMPTLY)
        later = {b"later %d" % one: None for one in range(scenario.limit or 1)}
        accepted |= {data: publisher.publish(topic, data) for data in later}
        if scenario.limit is not None:
            publisher.flush(timeout=PROMPTLY)
    _check_outcomes(accepted, may_fail=scenario.closes and kind == "raise")
    publisher.close(timeout=PROMPTLY)
    _check_stored(server, topic, accepted)
    return end


def _check_outcomes(accepted: Futures, *, may_fail: bool) -> None:
    give_up = time.monotonic() + PROMPTLY
    for data, future in accepted.items():
        try:
            error = future.exception(max(0, give_up - time.monotonic()))
        except concurrent.futures.TimeoutError:
            raise HarmError(f"the message {data!r} has no outcome") from None
        if error is not None and not may_fail:
            raise HarmError(f"the message {data!r} failed: {error!r}")


def _check_stored(server: PubSubServer, topic: str, accepted: Futures) -> None:
    messages = [message for message in server.messages() if message.topic == topic]
    stored = {message.data: message.message_id for message in messages}
    if len(stored) != len(messages):
        raise HarmError(f"messages were stored twice: {messages}")
    for data, future in accepted.items():
        if future.exception() is None and future.result() != stored.get(data):
            raise HarmError(f"{data!r}: the id {future.result()}, in the service {stored}")
    if unknown := stored.keys() - accepted.keys() - {b"interrupted"}:
        raise HarmError(f"these were never published: {unknown}")


def check_fork() -> None:
    """Check that nothing is left that a fork waits for, in the parent or in the child."""
    faulthandler.enable()  # the child's stack, if it hangs
    start = time.monotonic()
    child = os.fork()
    if not child:
        os._exit(0)
    took = time.monotonic() - start
    give_up = time.monotonic() + PROMPTLY
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > give_up:
            # Nobody else would end it, and it keeps open what our output is read from.
            os.kill(child, signal.SIGABRT)
            os.waitpid(child, 0)
            if GRPC_FORKS:
                raise HarmError("a forked child hangs")
            break
        time.sleep(0.001)
    if took > 0.7:
        raise HarmError(f"a fork took {took:.1f} s")


def main(kind: str, first: str, *names: str) -> int:
    """Interrupt the call of each scenario at each place, in the first one from ``first`` on."""
    with PubSubServer(set_emulator_host=True) as server:
        places = int(first) - 1
        for name in names:
            print(f"{name}:", flush=True)
            number = 10**9  # What is loaded on first use is loaded now, not at one of the places.
            while True:
                try:
                    for reaction in REACTIONS[kind]:
                        faulthandler.dump_traceback_later(HANGS, exit=True)
                        end = interrupt_once(server, SCENARIOS[name], number, kind, reaction)
                    if end.place is None or len(_until_fork) >= _BETWEEN_FORKS:
                        check_fork()
                        _until_fork.clear()
                        gc.collect()  # or it comes in a call, where gRPC's finalizers swallow all
                except (HarmError, RuntimeError, concurrent.futures.TimeoutError) as harm:
                    print(f"after {reaction}: {harm!r}", flush=True)
                    return 3
                if end.place is None and number < 10**9:
                    break
                if number == 10**9:
                    gc.freeze()  # what lives on need not be looked at in each collection
                places = number if end.place else places
                number = places + 1
            print(f"{places} places", flush=True)
            places = 0
        faulthandler.cancel_dump_traceback_later()
    return 0


if __name__ == "__main__":
    # Not through the end of the interpreter: what was broken would hold it up.
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
