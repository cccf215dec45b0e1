"""Interrupts calls at one place after the other, and checks what became of each.

Run as ``python -m tests.system.interruptions.program raise|call|collect [SCENARIO...]``: the
handler of the signal raises, or it calls the publisher, or another thread does that in a garbage
collection. Prints each scenario and each place; goes on with the next scenario after one that did
harm, and ends with their number; or with all stacks on stderr after a hang.
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
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import grpc
from google.api_core.retry import Retry
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import PubSubServer

from .places import Interruption, TimeLimitError, interrupt, interrupt_collection, raise_time_limit

HANGS: Final = 8.0
"""Seconds after which an interruption, with all that is checked after it, counts as a hang."""

PROMPTLY: Final = 4.0
"""Seconds that any one step may take; it waits for milliseconds."""

_BRIEFLY: Final = BatchSettings(max_messages=100, max_latency=0.01)
_UNTIL_FLUSHED: Final = BatchSettings(max_messages=100, max_latency=float("inf"))

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


def _publish(publisher: HedgedPublisher, topic: str, accepted: Futures, **arguments: Any) -> None:
    accepted[b"interrupted"] = publisher.publish(topic, b"interrupted", **arguments)


def _publish_some(publisher: HedgedPublisher, topic: str, name: bytes, count: int) -> Futures:
    return {
        (data := b"%s %d" % (name, one)): publisher.publish(topic, data) for one in range(count)
    }


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is interrupted, and in which state the publisher is then."""

    call: Callable[[HedgedPublisher, str, Futures], object]
    earlier: int = 2  # so many messages were accepted before
    batch: BatchSettings = _BRIEFLY
    options: Sequence[Any] = ()
    limit: int | None = None  # of messages, if flow control counts
    refuses: bool = False  # flow control may refuse what is published beside the earlier messages
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
    "publish within limits": _limited(LimitExceededBehavior.BLOCK, earlier=1),
    "publish above the limit (ERROR)": _limited(
        LimitExceededBehavior.ERROR, earlier=3, refuses=True
    ),
    "publish that waits (BLOCK)": _limited(
        LimitExceededBehavior.BLOCK, earlier=3, flushed_after=0.01
    ),
    "flush": Scenario(call=lambda publisher, *_: publisher.flush()),
    "stop": Scenario(call=lambda publisher, *_: publisher.stop(), stops=True),
    "close with a timeout": Scenario(
        call=lambda publisher, *_: publisher.close(timeout=PROMPTLY), stops=True, closes=True
    ),
    "the end of a with block": Scenario(
        call=lambda publisher, *_: publisher.__exit__(None, None, None), stops=True, closes=True
    ),
}


def _read_and_publish(publisher: HedgedPublisher, topic: str) -> object:
    publisher.hedging_stats()
    return publisher.publish(topic, b"from the handler")


Reaction = Callable[[HedgedPublisher, str], object]

REACTIONS: Final[dict[str, dict[str, Reaction]]] = {
    "raise": {
        "a time limit": raise_time_limit,
        "Ctrl-C": lambda *_: signal.default_int_handler(signal.SIGINT, None),
    },
    "drain": {
        "publish()": _read_and_publish,
        "flush()": lambda publisher, _: publisher.flush(),
        "close()": lambda publisher, _: publisher.close(),
    },
}
"""What the handler of the signal does; after draining the publisher it raises."""


def _on_another_thread(react: Reaction, publisher: HedgedPublisher, topic: str) -> object:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(react, publisher, topic).result()


REACTIONS["call"] = REACTIONS["drain"]
# That is what runs there most often: the collector calls Python code, and threads are switched.
REACTIONS["collect"] = {
    name: partial(_on_another_thread, react) for name, react in REACTIONS["call"].items()
}


class _SharedTransport(PublisherGrpcTransport):
    """A transport that outlives the publishers on it: to connect takes longer than to publish."""

    def close(self) -> None:
        """Do nothing."""


@cache
def _shared_transport() -> _SharedTransport:
    return _SharedTransport(channel=grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"]))


_numbers: Final = itertools.count()

Find = Callable[[Callable[[], object], Callable[[str], object]], Interruption]
"""Calls the one, and the other at some place in it."""

HARMS: Final = (HarmError, RuntimeError, concurrent.futures.TimeoutError)
"""What ``interrupt_once`` raises if something is broken."""


def interrupt_once(
    server: PubSubServer, scenario: Scenario, kind: str, reaction: str, find: Find
) -> str | None:
    """Interrupt a new publisher's call; return at which place, or raise one of ``HARMS``."""
    faulthandler.dump_traceback_later(HANGS, exit=True)
    raises = kind in {"raise", "drain"}
    server.clear()
    # Its own: what an interrupted close() has given up may be stored after the clearing.
    topic = server.create_topic(f"orders-{next(_numbers)}")
    transport = None if scenario.stops else _shared_transport()
    # Or a busy machine is a reason to hedge, and messages are stored twice.
    settings = HedgingSettings(hedge_delay=PROMPTLY)
    publisher = HedgedPublisher(
        scenario.batch, scenario.options, hedging_settings=settings, transport=transport
    )
    _until_fork.append(publisher)
    accepted = _publish_some(publisher, topic, b"earlier", scenario.earlier)
    if scenario.flushed_after is not None:
        threading.Timer(scenario.flushed_after, publisher.flush, [PROMPTLY]).start()

    def handle(_: str) -> None:
        try:
            result = REACTIONS[kind][reaction](publisher, topic)
        except RuntimeError:  # it was stopped
            if not (scenario.stops and reaction == "publish()"):
                raise
        else:
            if reaction == "publish()":
                accepted[b"from the handler"] = result

    def may_fail(data: bytes, error: BaseException) -> bool:
        if isinstance(error, FlowControlLimitError):
            return scenario.refuses and not data.startswith(b"later")
        # It was closed before; or by the handler, and the message that it interrupted was too late.
        is_interrupted = not data.startswith(b"earlier") and data == next(reversed(accepted))
        return (scenario.closes and raises) or (is_closed and is_interrupted)

    end = find(partial(scenario.call, publisher, topic, accepted), handle)
    is_closed = reaction == "close()" and end.place is not None
    is_stopped = scenario.stops or is_closed
    if end.place is None:
        if end.raised is not None:
            raise end.raised
    elif raises:
        if not (isinstance(end.raised, (TimeLimitError, KeyboardInterrupt)) or end.lost):
            raise HarmError(f"the error did not come out of the call, but {end.raised!r}")
    elif not (end.raised is None or (is_stopped and isinstance(end.raised, RuntimeError))):
        raise HarmError(f"the call raised {end.raised!r}")
    publisher.hedging_stats()
    if not is_stopped:
        if scenario.limit is not None:
            publisher.flush(timeout=PROMPTLY)
        accepted |= _publish_some(publisher, topic, b"later", scenario.limit or 1)
        if scenario.limit is not None:
            publisher.flush(timeout=PROMPTLY)
    ids: dict[bytes, str] = {}
    give_up = time.monotonic() + PROMPTLY
    for data, future in accepted.items():
        error = future.exception(max(0, give_up - time.monotonic()))
        if error is None:
            ids[data] = future.result()
        elif not may_fail(data, error):
            raise HarmError(f"the message {data!r} failed: {error!r}")
    publisher.close(timeout=PROMPTLY)
    messages = [message for message in server.messages() if message.topic == topic]
    stored = {message.data: message.message_id for message in messages}
    if len(stored) != len(messages):
        raise HarmError(f"messages were stored twice: {messages}")
    if not ids.items() <= stored.items():
        raise HarmError(f"{ids.items() - stored.items()} are not what is stored")
    unknown = stored.keys() - accepted.keys()
    if len(unknown) > 1:  # the interrupted one may be stored, though its future is lost
        raise HarmError(f"these were never published: {unknown}")
    return end.place


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
    _until_fork.clear()


def interrupt_everywhere(server: PubSubServer, name: str, kind: str) -> None:
    """Interrupt the call of a scenario at each place, or until that does harm."""
    at_place = interrupt_collection if kind == "collect" else interrupt

    def find(call: Callable[[], object], handle: Callable[[str], object]) -> Interruption:
        def tell_and_handle(place: str) -> None:
            os.write(1, f"{name}, {reaction}, {number}: {place}\n".encode())
            handle(place)

        return at_place(call, number, tell_and_handle)

    # What is loaded on first use is loaded now, not at one of the places.
    for number in itertools.chain([10**9], itertools.count(1)):
        for reaction in REACTIONS[kind]:
            place = interrupt_once(server, SCENARIOS[name], kind, reaction, find)
        if place is None or len(_until_fork) >= _BETWEEN_FORKS:
            check_fork()
            if kind != "collect":
                gc.collect()  # or it comes in a call, where gRPC's finalizers swallow all
        if number == 10**9:
            gc.freeze()  # what lives on need not be looked at in each collection
        elif place is None:
            print(f"{name}: {number - 1} places", flush=True)
            break


def main(kind: str, *names: str) -> int:
    """Interrupt the calls of scenarios, by default of all; return how many were harmed."""
    harmed = 0
    with PubSubServer(set_emulator_host=True) as server:
        for name in names or SCENARIOS:
            try:
                interrupt_everywhere(server, name, kind)
            except HARMS:
                traceback.print_exc(file=sys.stdout)
                harmed += 1
        faulthandler.cancel_dump_traceback_later()
    return harmed


if __name__ == "__main__":
    # Not through the end of the interpreter: what was broken would hold it up.
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
