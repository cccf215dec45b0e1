"""``AsyncHedgedPublisher`` beside the official clients: throughput in turns, and the tail.

Throughput, A B C A B C …, each client in a process of its own: ``PublisherAsyncClient.publish``
called once a message by many tasks, the official synchronous client, and the asyncio publisher,
which one task calls. The tail: an open-loop schedule against a server of which 1 % of the requests
stall for 2 s. Run it from the project's folder:

    python benchmarks/async_throughput.py [--batch 100] [--repeats 5] [--target server]
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherAsyncClient, PubsubMessage

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings, HedgingStats
from hedged_pubsub.cli.bench.clients import Client, use_server
from hedged_pubsub.cli.bench.process import Job, MeasuringProcess
from hedged_pubsub.cli.bench.spread import median, ratios
from hedged_pubsub.cli.bench.targets import running_target
from hedged_pubsub.cli.bench.throughput import Rate, ThroughputJob, batch_settings
from hedged_pubsub.testing import FaultScript, LogNormal, PubSubServer, Stall

# Enough for the server never to wait.
_BATCHES_IN_FLIGHT = 20
_TASKS = 100

_TAIL_SETTINGS = HedgingSettings(hedge_delay=0.1)
_TAIL_RATE = 200.0
_BODY = LogNormal(median=0.005, sigma=0.4)


@dataclass(frozen=True, kw_only=True, slots=True)
class OnceAMessageJob:
    """Let a hundred tasks call the generated ``publish``, one message each time.

    Attributes:
        address: The server's.
        topic: Full name of the topic.
        size: Bytes a message.
        seconds: How long.
    """

    address: str
    topic: str
    size: int
    seconds: float

    def run(self) -> Rate:
        """Measure."""
        return asyncio.run(self._run())

    async def _run(self) -> Rate:
        use_server(self.address)
        async with PublisherAsyncClient() as client:
            message = PubsubMessage(data=b"x" * self.size)
            sent = 0
            end = 0.0

            async def publish() -> None:
                nonlocal sent
                while time.perf_counter() < end:
                    await client.publish(topic=self.topic, messages=[message])
                    sent += 1

            for seconds in (self.seconds / 4, self.seconds):
                sent = 0
                cpu, start = time.process_time(), time.perf_counter()
                end = start + seconds
                await asyncio.gather(*(publish() for _ in range(_TASKS)))
            return Rate(
                per_second=sent / (time.perf_counter() - start),
                cpu=(time.process_time() - cpu) / sent,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class AsyncJob:
    """Let one task enqueue as fast as a bounded number of batches in flight allows.

    Attributes:
        address: The server's.
        topic: Full name of the topic.
        batch: Messages a batch.
        size: Bytes a message.
        seconds: How long.
    """

    address: str
    topic: str
    batch: int
    size: int
    seconds: float

    def run(self) -> Rate:
        """Measure."""
        return asyncio.run(self._run())

    async def _run(self) -> Rate:
        use_server(self.address)
        async with AsyncHedgedPublisher(batch_settings(self.batch)) as publisher:
            await self._publish(publisher, self.seconds / 4)
            cpu, start = time.process_time(), time.perf_counter()
            batches = await self._publish(publisher, self.seconds)
            messages = batches * self.batch
            return Rate(
                per_second=messages / (time.perf_counter() - start),
                cpu=(time.process_time() - cpu) / messages,
            )

    async def _publish(self, publisher: AsyncHedgedPublisher, seconds: float) -> int:
        data = b"x" * self.size
        batches = 0
        # The last future of each, which stands for its batch.
        in_flight: collections.deque[asyncio.Future[str]] = collections.deque()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(self.batch - 1):
                await publisher.enqueue(self.topic, data)
            in_flight.append(await publisher.enqueue(self.topic, data))
            batches += 1
            if len(in_flight) > _BATCHES_IN_FLIGHT:
                for _ in range(_BATCHES_IN_FLIGHT // 2):
                    await in_flight.popleft()
        await publisher.flush()
        return batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Latencies in seconds from the scheduled time, and what hedging did."""

    latencies: tuple[float, ...]
    stats: HedgingStats


@dataclass(frozen=True, kw_only=True, slots=True)
class TailJob:
    """Publish message n at n / rate seconds, each a request of its own.

    Attributes:
        publishes: How many messages.
        stalled: The share of requests that stall for 2 s.
    """

    publishes: int
    stalled: float

    def run(self) -> Tail:
        """Measure. The token bucket is full when the schedule begins."""
        with PubSubServer(FaultScript(latency=_BODY), process=True) as server:
            use_server(server.address)
            return asyncio.run(self._run(server))

    async def _run(self, server: PubSubServer) -> Tail:
        topic = server.create_topic("tails")
        async with AsyncHedgedPublisher(
            pubsub_v1.types.BatchSettings(max_messages=1), hedging_settings=_TAIL_SETTINGS
        ) as publisher:
            while publisher.hedging_stats().tokens < _TAIL_SETTINGS.max_tokens:
                await asyncio.gather(*(publisher.publish(topic, b"warm-up") for _ in range(8)))
            # A full collection of what importing has left would be in the tail.
            gc.collect()
            gc.freeze()
            faults = [Stall(2.0, probability=self.stalled)] if self.stalled else []
            server.set_script(FaultScript(latency=_BODY, faults=faults, seed=1))
            start = time.perf_counter() + 1  # once all tasks are made

            async def publish(number: int) -> float:
                due = start + number / _TAIL_RATE
                await asyncio.sleep(due - time.perf_counter())
                await publisher.publish(topic, b"message %d" % number)
                return time.perf_counter() - due

            tasks = [asyncio.ensure_future(publish(number)) for number in range(self.publishes)]
            latencies = tuple(sorted(await asyncio.gather(*tasks)))
            return Tail(latencies=latencies, stats=publisher.hedging_stats())


def measure_throughput(options: argparse.Namespace) -> None:
    """Measure the three clients in turns and print their rates and ratios."""
    jobs: dict[str, Callable[[str, str], Job[Rate]]] = {
        "PublisherAsyncClient, once a message": lambda address, topic: OnceAMessageJob(
            address=address, topic=topic, size=options.size, seconds=options.seconds
        ),
        "PublisherClient": lambda address, topic: ThroughputJob(
            client=Client.OFFICIAL,
            address=address,
            topic=topic,
            batch=options.batch,
            size=options.size,
            seconds=options.seconds,
        ),
        "AsyncHedgedPublisher": lambda address, topic: AsyncJob(
            address=address,
            topic=topic,
            batch=options.batch,
            size=options.size,
            seconds=options.seconds,
        ),
    }
    rates: dict[str, list[Rate]] = {name: [] for name in jobs}
    with running_target(options.target) as target:
        topic = target.create_topic()
        with MeasuringProcess() as first, MeasuringProcess() as second, MeasuringProcess() as third:
            for _ in range(options.repeats):
                for (name, job), process in zip(jobs.items(), (first, second, third), strict=True):
                    rates[name].append(process.run(job(target.address, topic)))
                    target.clear()
    ours = rates["AsyncHedgedPublisher"]
    print(f"{options.target}, batches of {options.batch}, {options.size} bytes a message")
    for name, measured in rates.items():
        times = ratios(ours, measured, lambda rate: rate.per_second)
        print(
            f"  {name:38} {median(measured, lambda rate: rate.per_second):9,.0f} /s"
            f" {1e6 * median(measured, lambda rate: rate.cpu):7.1f} us CPU"
            f"   AsyncHedgedPublisher does {times.median:.1f}"
            f" ({times.low:.1f} to {times.high:.1f}) times that"
        )


def measure_tail(publishes: int) -> None:
    """Measure the tail and print its percentiles beside the best that the hedge delay allows."""
    delay = _TAIL_SETTINGS.initial_hedge_delay
    for stalled in (0.0, 0.01):
        with MeasuringProcess() as process:
            tail = process.run(TailJob(publishes=publishes, stalled=stalled))
        p50, p99, p99_9 = (
            tail.latencies[int(len(tail.latencies) * share)] for share in (0.5, 0.99, 0.999)
        )
        print(
            f"{stalled:.0%} stalled for 2 s: p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms, p99.9"
            f" {1e3 * p99_9:.1f} ms = {p99_9 / (delay + p50):.2f} x (delay + median),"
            f" max {1e3 * tail.latencies[-1]:.1f} ms; {tail.stats.hedges_sent} hedges"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--target", default="emulator")
    parser.add_argument("--publishes", type=int, default=4000)
    options = parser.parse_args()
    if options.repeats:
        measure_throughput(options)
    measure_tail(options.publishes)


if __name__ == "__main__":
    # By its name, under which the measuring processes find the jobs as well.
    importlib.import_module("async_throughput").main()
