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
import functools
import gc
import importlib
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherAsyncClient, PubsubMessage

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings, HedgingStats
from hedged_pubsub.cli.bench.jobs import MeasuringProcess, Rate, batch_settings, throughput
from hedged_pubsub.cli.bench.scenarios import running_target
from hedged_pubsub.cli.clients import LATENCY, Client, use_server
from hedged_pubsub.cli.measures import PERCENTILES, nearest_rank, ratios
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

# Enough for the server never to wait.
_BATCHES_IN_FLIGHT = 20
_TASKS = 100

_TAIL_SETTINGS = HedgingSettings(hedge_delay=0.1)
_TAIL_RATE = 200.0


@dataclass(frozen=True, kw_only=True, slots=True)
class AsyncioJob:
    """Publish for ``seconds`` with one client, made in an event loop."""

    address: str
    topic: str
    batch: int
    size: int
    seconds: float

    def __call__(self) -> Rate:
        """Measure, with a client of its own that is warm."""
        use_server(self.address)
        return asyncio.run(self._run())

    async def _run(self) -> Rate:
        raise NotImplementedError

    async def _measure(self, publish_for: Callable[[float], Awaitable[int]]) -> Rate:
        await publish_for(self.seconds / 4)
        cpu, start = time.process_time(), time.perf_counter()
        messages = await publish_for(self.seconds)
        return Rate(
            per_second=messages / (time.perf_counter() - start),
            cpu=(time.process_time() - cpu) / messages,
        )


class OnceAMessageJob(AsyncioJob):
    """Let a hundred tasks call the generated ``publish``, one message each time."""

    async def _run(self) -> Rate:
        message = PubsubMessage(data=b"x" * self.size)
        async with PublisherAsyncClient() as client:

            async def publish_until(end: float) -> int:
                sent = 0
                while time.perf_counter() < end:
                    await client.publish(topic=self.topic, messages=[message])
                    sent += 1
                return sent

            async def publish_for(seconds: float) -> int:
                end = time.perf_counter() + seconds
                return sum(await asyncio.gather(*(publish_until(end) for _ in range(_TASKS))))

            return await self._measure(publish_for)


class EnqueueJob(AsyncioJob):
    """Let one task enqueue as fast as a bounded number of batches in flight allows."""

    async def _run(self) -> Rate:
        async with AsyncHedgedPublisher(batch_settings(self.batch)) as publisher:
            return await self._measure(functools.partial(self._publish, publisher))

    async def _publish(self, publisher: AsyncHedgedPublisher, seconds: float) -> int:
        data = b"x" * self.size
        messages = 0
        # The last future of each, which stands for its batch.
        in_flight: collections.deque[asyncio.Future[str]] = collections.deque()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(self.batch - 1):
                await publisher.enqueue(self.topic, data)
            in_flight.append(await publisher.enqueue(self.topic, data))
            messages += self.batch
            if len(in_flight) > _BATCHES_IN_FLIGHT:
                for _ in range(_BATCHES_IN_FLIGHT // 2):
                    await in_flight.popleft()
        await publisher.flush()
        return messages


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """Latencies in seconds from the scheduled time, and what hedging did."""

    latencies: tuple[float, ...]
    stats: HedgingStats


@dataclass(frozen=True, kw_only=True, slots=True)
class TailJob:
    """Publish message n at n / rate seconds, each a request of its own."""

    publishes: int
    stalled: float  # the share of requests that stall for 2 s

    def __call__(self) -> Tail:
        """Measure. The token bucket is full when the schedule begins."""
        with PubSubServer(FaultScript(latency=LATENCY), process=True) as server:
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
            server.set_script(FaultScript(latency=LATENCY, faults=faults, seed=1))
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
    jobs: dict[str, Callable[..., Callable[[], Rate]]] = {
        "PublisherAsyncClient, once a message": OnceAMessageJob,
        "PublisherClient": functools.partial(functools.partial, throughput, client=Client.OFFICIAL),
        "AsyncHedgedPublisher": EnqueueJob,
    }
    common = {"batch": options.batch, "size": options.size, "seconds": options.seconds}
    rates: dict[str, list[Rate]] = {name: [] for name in jobs}
    with running_target(options.target) as target:
        topic = target.create_topic()
        with MeasuringProcess() as first, MeasuringProcess() as second, MeasuringProcess() as third:
            for _ in range(options.repeats):
                for (name, job), process in zip(jobs.items(), (first, second, third), strict=True):
                    made = job(address=target.address, topic=topic, **common)
                    rates[name].append(process.run(made))
                    target.clear()
    per_second = {name: [rate.per_second for rate in measured] for name, measured in rates.items()}
    print(f"{options.target}, batches of {options.batch}, {options.size} bytes a message")
    for name, measured in rates.items():
        times = ratios(per_second["AsyncHedgedPublisher"], per_second[name])
        print(
            f"  {name:38} {statistics.median(per_second[name]):9,.0f} /s"
            f" {1e6 * statistics.median(rate.cpu for rate in measured):7.1f} us CPU"
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
            nearest_rank(tail.latencies, PERCENTILES[name]) for name in ("p50", "p99", "p99.9")
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
