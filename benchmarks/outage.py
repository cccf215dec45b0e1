"""An outage: how soon what waited is stored, what the outage costs, and what fresh messages feel.

Batches of one message at 200 a second, default settings. The service answers UNAVAILABLE at once,
or is gone so that nothing can be connected, and then comes back. Each client in turn, in a process
of its own beside a server in another. Run it from the project's folder:

    python benchmarks/outage.py [--kind unavailable|refused] [--seconds 20] [--client threads …]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher
from hedged_pubsub.cli.measures import nearest_rank
from hedged_pubsub.testing import FaultScript, PubSubServer, Status

RATE = 200.0
TOPIC = "projects/test/topics/orders"
_BEFORE, _AFTER = 2.0, 5.0
_ONE_MESSAGE = BatchSettings(max_messages=1)
SOON = 2.0
"""Seconds after the end of an outage within which what waited should be stored."""

Publish = Callable[[bytes, Callable[[BaseException | None], object]], object]


class Make(Protocol):
    """Makes a client; leaving the context closes it."""

    def __call__(self) -> contextlib.AbstractContextManager[Publish]:
        """Return a function that publishes, and calls back with the error or None."""


def _by_futures(publisher: Any) -> Publish:
    def publish(data: bytes, ended: Callable[[BaseException | None], object]) -> None:
        publisher.publish(TOPIC, data).add_done_callback(lambda one: ended(one.exception()))

    return publish


@contextlib.contextmanager
def official() -> Iterator[Publish]:
    """The official client."""
    publisher = pubsub_v1.PublisherClient(_ONE_MESSAGE)
    yield _by_futures(publisher)
    publisher.stop()


@contextlib.contextmanager
def threads(**settings: Any) -> Iterator[Publish]:
    """``HedgedPublisher``."""
    with HedgedPublisher(_ONE_MESSAGE, **settings) as publisher:
        yield _by_futures(publisher)
        print("   ", publisher.hedging_stats(TOPIC))


@contextlib.contextmanager
def asynchronous(**settings: Any) -> Iterator[Publish]:
    """``AsyncHedgedPublisher``, on a loop of its own."""
    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever, daemon=True)
    runner.start()

    async def make() -> AsyncHedgedPublisher:
        return AsyncHedgedPublisher(_ONE_MESSAGE, **settings)

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    publisher = run(make())

    def publish(data: bytes, ended: Callable[[BaseException | None], object]) -> None:
        future = asyncio.run_coroutine_threadsafe(publisher.publish(TOPIC, data), loop)
        future.add_done_callback(lambda one: ended(one.exception()))

    yield publish
    print("   ", publisher.hedging_stats(TOPIC))
    run(publisher.close())
    loop.call_soon_threadsafe(loop.stop)
    runner.join()


CLIENTS: dict[str, Make] = {"official": official, "threads": threads, "asyncio": asynchronous}


@dataclass(slots=True)
class Outcome:
    """What became of the messages: start and end of each, in seconds, by number."""

    starts: list[float] = field(default_factory=list)
    ends: dict[int, float] = field(default_factory=dict)
    failed: int = 0

    def ended(self, number: int, error: BaseException | None) -> None:
        """Take note of the end of one."""
        self.failed += error is not None
        if error is None:
            self.ends[number] = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run.

    Attributes:
        waiting: Messages that waited when the outage was over.
        soon: The share of them that was stored within two seconds.
        slowest: Seconds after the end of the outage until the last of those was stored, that were
            within five seconds.
        fresh_p99: Seconds that messages took which were published in the two seconds after the
            first one was stored again.
        requests: Requests that reached the server during the outage.
        failed: Messages that failed.
    """

    waiting: int
    soon: float
    slowest: float
    fresh_p99: float
    requests: int
    failed: int


def run(make: Make, *, kind: str, seconds: float, rate: float = RATE) -> Result:
    """Publish through an outage of so many seconds."""
    outcome = Outcome()
    with PubSubServer(process=True, set_emulator_host=True, auto_create_topics=True) as server:
        server.create_topic(TOPIC)
        port = server.port
        with contextlib.ExitStack() as stack:
            publish = stack.enter_context(make())
            begun = time.monotonic()
            stopped = threading.Event()
            loader = threading.Thread(target=_load, args=(publish, outcome, rate, stopped))
            loader.start()
            _sleep_until(begun + _BEFORE)
            server.clear()
            if kind == "unavailable":
                window = (0.0, seconds)
                begin = time.monotonic()
                server.set_script(FaultScript(faults=[Status("UNAVAILABLE", between=window)]))
                _sleep_until(begin + seconds)
                over = time.monotonic()
            else:
                server.stop()
                _sleep_until(begun + _BEFORE + seconds)
                server = _server_at(port)
                stack.callback(server.stop)
                over = time.monotonic()
            _sleep_until(over + _AFTER)
            stopped.set()
            loader.join()
            ends = dict(outcome.ends)
            # Not before: the server would be busy with it while others want it.
            requests = len([one for one in server.attempts() if one.outcome == "failed"])
    waited = [ends.get(n) for n, start in enumerate(outcome.starts) if start < over]
    waits = [(end or 1e9) - over for end in waited if end is None or end >= over]
    back = min((end for end in ends.values() if end >= over), default=over)
    fresh = [
        ends.get(n, 1e9) - start
        for n, start in enumerate(outcome.starts)
        if back <= start < back + SOON
    ]
    return Result(
        waiting=len(waits),
        soon=sum(wait <= SOON for wait in waits) / max(1, len(waits)),
        slowest=max((wait for wait in waits if wait < 1e6), default=0.0),
        fresh_p99=nearest_rank(sorted(fresh), 9900),
        requests=requests,
        failed=outcome.failed,
    )


def _server_at(port: int) -> PubSubServer:
    """Start a server. A client that connects to the free port may hold it for a moment."""
    server = PubSubServer(process=True, port=port, auto_create_topics=True)
    give_up = time.monotonic() + 10
    while True:
        try:
            server.start()
        except RuntimeError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)
        else:
            return server


def _load(publish: Publish, outcome: Outcome, rate: float, stopped: threading.Event) -> None:
    begun, number = time.monotonic(), 0
    while not stopped.is_set():
        _sleep_until(begun + number / rate)
        outcome.starts.append(time.monotonic())
        publish(b"%d" % number, functools.partial(outcome.ended, number))
        number += 1


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))


def _run_and_print(name: str, kind: str, seconds: float) -> None:
    result = run(CLIENTS[name], kind=kind, seconds=seconds)
    print(
        f"{kind:12} {name:9} {result.waiting:5} waited, {result.soon:6.1%} of them stored within "
        f"{SOON:g} s, the last after {result.slowest:.2f} s; fresh p99 "
        f"{1000 * result.fresh_p99:.0f} ms; {result.requests} requests during the outage; "
        f"{result.failed} failed",
        flush=True,
    )


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=["unavailable", "refused"], action="append")
    parser.add_argument("--client", choices=[*CLIENTS], action="append")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for kind in arguments.kind or ["unavailable", "refused"]:
        for name in arguments.client or [*CLIENTS]:
            # Not a daemon: it has a server in a process of its own.
            process = spawn.Process(target=_run_and_print, args=(name, kind, arguments.seconds))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
