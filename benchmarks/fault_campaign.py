"""Ten million messages through errors, stalls, and connections that are reset, frozen or refused.

The server stalls 1.5 % of the requests and answers UNAVAILABLE, INTERNAL or RESOURCE_EXHAUSTED to
2.5 %. Every three seconds a proxy in between resets all connections, freezes one, or refuses new
ones for half a second. Each client in turn keeps as many batches in flight; what it says of each
message is compared with what the server has stored. Run it from the project's folder:

    python benchmarks/fault_campaign.py [--messages 10000000] [--client threads …] [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.api_core.exceptions import (
    Aborted,
    DeadlineExceeded,
    InternalServerError,
    ResourceExhausted,
    ServiceUnavailable,
    Unknown,
)
from google.api_core.retry import Retry, if_exception_type
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions

from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher, HedgingSettings
from hedged_pubsub.cli.measures import nearest_rank
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status, TcpProxy

TOPIC = "projects/test/topics/orders"
SETTINGS = HedgingSettings(hedge_delay=0.1, max_tokens=250, refill_ratio=0.2)
OPTIONS = PublisherOptions(
    retry=Retry(
        if_exception_type(
            *(Aborted, DeadlineExceeded, InternalServerError, ResourceExhausted),
            *(ServiceUnavailable, Unknown),
        ),
        initial=0.1,
        maximum=60.0,
        multiplier=4.0,
        timeout=600.0,
    )
)
"""What the official client has by default, which retries all of these."""

EVERY = 3.0
"""Seconds between two faults of the connections."""


def script(seed: int = 1) -> FaultScript:
    """Return what the server does to requests."""
    statuses = [
        Status(code, probability=0.0085)
        for code in ("UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED")
    ]
    return FaultScript(faults=[Stall(2.0, probability=0.015), *statuses], seed=seed)


@contextlib.contextmanager
def faulty_connections(proxy: TcpProxy, every: float = EVERY) -> Iterator[None]:
    """Break connections in turns, until the context is left."""
    stopped = threading.Event()

    def run() -> None:
        turn = 0
        while not stopped.wait(every):
            connections = [one for one in proxy.connections if one.is_open]
            if turn % 3 == 1 and connections:
                connections[0].freeze()
            else:
                if turn % 3 == 2:
                    proxy.refuse()
                for connection in connections:
                    connection.reset()
                if turn % 3 == 2:
                    stopped.wait(0.5)
                    proxy.accept()
            turn += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a campaign: counts are messages, but for batches; times are seconds."""

    published: int
    lost: int
    pending: int
    failed: int
    duplicates: int
    possible_duplicates: int
    seconds: float
    p999: float
    slowest: float

    def __str__(self) -> str:
        """Say it on one line."""
        return (
            f"{self.published} messages in {self.seconds:.0f} s, "
            f"{self.published / self.seconds:.0f} a second; {self.lost} lost, {self.pending} "
            f"pending, {self.failed} failed; {self.duplicates} duplicates of "
            f"{self.possible_duplicates} possible; p99.9 {self.p999:.2f} s, slowest "
            f"{self.slowest:.2f} s"
        )


class Load:
    """Keeps so many batches under way, and takes note of what becomes of each message."""

    def __init__(
        self, *, messages: int, batch: int, in_flight: int, seconds: float, waves: bool
    ) -> None:
        self.batch = batch
        self.waves = waves
        self.in_flight = in_flight
        self.until = time.monotonic() + seconds
        self.messages = messages
        self.room = threading.Semaphore(in_flight)
        self.latencies: list[float] = []
        self.acknowledged = bytearray(messages)
        self.published = self.failed = self.undecided = 0

    @property
    def places(self) -> int:
        """How many places to wait for before the next batch; in waves, for all before each."""
        if not self.waves:
            return 1
        return 0 if self.published // self.batch % self.in_flight else self.in_flight

    def next_batch(self) -> list[bytes]:
        """Return the messages of another batch; none if no more are wanted."""
        first, last = self.published, self.published + self.batch
        if last > self.messages or time.monotonic() > self.until:
            return []
        self.published = last
        self.undecided += 1
        return [number.to_bytes(8, "big").ljust(100) for number in range(first, last)]

    def ended(self, begun: float, first: int, *, stored: bool) -> None:
        """Take in the end of a batch."""
        self.latencies.append(time.monotonic() - begun)
        self.undecided -= 1
        if stored:
            self.acknowledged[first : first + self.batch] = b"\1" * self.batch
        else:
            self.failed += self.batch


def publish_by_threads(publisher: Any, load: Load) -> None:
    """Publish with a synchronous client."""
    while True:
        for _ in range(load.places):
            load.room.acquire()
        if not (batch := load.next_batch()):
            break
        begun, first = time.monotonic(), load.published - load.batch
        futures = [publisher.publish(TOPIC, data) for data in batch]

        def ended(last: Any, begun: float = begun, first: int = first) -> None:
            load.ended(begun, first, stored=last.exception() is None)
            load.room.release()

        futures[-1].add_done_callback(ended)
    give_up = time.monotonic() + 120
    while load.undecided and time.monotonic() < give_up:
        time.sleep(0.01)


async def publish_by_tasks(publisher: AsyncHedgedPublisher, load: Load) -> None:
    """Publish with the asyncio publisher."""
    room = asyncio.Semaphore(load.in_flight)
    tasks: set[asyncio.Future[None]] = set()

    async def one(batch: list[bytes], first: int) -> None:
        begun = time.monotonic()
        futures = [await publisher.enqueue(TOPIC, data) for data in batch]
        ids = await asyncio.gather(*futures, return_exceptions=True)
        failed = any(isinstance(message_id, BaseException) for message_id in ids)
        load.ended(begun, first, stored=not failed)
        room.release()

    while True:
        for _ in range(load.places):
            await room.acquire()
        if not (batch := load.next_batch()):
            break
        task = asyncio.ensure_future(one(batch, int.from_bytes(batch[0][:8], "big")))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=120)


def _serve(messages: int, script: FaultScript, pipe: Any) -> None:
    """Serve, in a process of its own, and count how often each message is stored."""
    counts, ids = bytearray(messages), itertools.count()
    with PubSubServer(auto_create_topics=True) as server:
        server.create_topic(TOPIC)

        def count(_topic: str, batch: Any, **_: Any) -> list[str]:
            for message in batch:
                counts[int.from_bytes(message.data[:8], "big")] += 1
            return [str(next(ids)) for _ in batch]

        local: Any = server._server
        local.broker.publish = count
        server.set_script(script)
        pipe.send(server.address)
        while not pipe.poll(1.0):
            server.clear()  # or the records fill the memory
        pipe.recv()
        pipe.send_bytes(bytes(counts))


def run(
    client: str,
    *,
    messages: int,
    batch: int = 1000,
    in_flight: int = 60,
    seconds: float = 600.0,
    every: float = EVERY,
    waves: bool = False,
) -> Result:
    """Publish so many messages, or for so long, with ``official``, ``threads`` or ``asyncio``."""
    batching = BatchSettings(max_messages=batch, max_bytes=9_000_000, max_latency=0.5)
    here, there = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    server = spawn.Process(target=_serve, args=(messages, script(), there))
    server.start()
    load = Load(messages=messages, batch=batch, in_flight=in_flight, seconds=seconds, waves=waves)
    with TcpProxy(here.recv()) as proxy, contextlib.ExitStack() as stack:
        os.environ["PUBSUB_EMULATOR_HOST"] = proxy.address
        begun = time.monotonic()
        stack.enter_context(faulty_connections(proxy, every))
        possible = _publish(client, load, batching)
        took = time.monotonic() - begun
    here.send("end")
    counts = here.recv_bytes()
    server.join()
    latencies = sorted(load.latencies) or [0.0]
    return Result(
        published=load.published,
        lost=sum(acked > stored for acked, stored in zip(load.acknowledged, counts, strict=True)),
        pending=load.undecided * batch,
        failed=load.failed,
        duplicates=sum(count - 1 for count in counts if count > 1),
        possible_duplicates=possible * batch,
        seconds=took,
        p999=nearest_rank(latencies, 9990),
        slowest=latencies[-1],
    )


def _publish(client: str, load: Load, batching: BatchSettings) -> int:
    """Publish with a client; return how many batches it says may be stored twice."""
    if client == "asyncio":

        async def main() -> int:
            async with AsyncHedgedPublisher(
                batching, OPTIONS, hedging_settings=SETTINGS
            ) as publisher:
                await publish_by_tasks(publisher, load)
                print("   ", publisher.hedging_stats(TOPIC))
                return publisher.hedging_stats().possible_duplicates

        return asyncio.run(main())
    if client == "threads":
        with HedgedPublisher(batching, OPTIONS, hedging_settings=SETTINGS) as publisher:
            publish_by_threads(publisher, load)
            print("   ", publisher.hedging_stats(TOPIC))
            return publisher.hedging_stats().possible_duplicates
    official = pubsub_v1.PublisherClient(batching, OPTIONS)
    publish_by_threads(official, load)
    official.stop()
    return 0


def _run_and_print(client: str, arguments: dict[str, Any]) -> None:
    print(f"{client:9} {run(client, **arguments)}", flush=True)


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--client", choices=["official", "threads", "asyncio"], action="append")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=60)
    parser.add_argument("--waves", action="store_true", help="wait for all in flight before more")
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    for client in arguments.client or ["threads", "asyncio", "official"]:
        given = {name: value for name, value in vars(arguments).items() if name != "client"}
        process = spawn.Process(target=_run_and_print, args=(client, given))
        process.start()
        process.join()


if __name__ == "__main__":
    main()
