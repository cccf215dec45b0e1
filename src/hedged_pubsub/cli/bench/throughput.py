"""Throughput: messages per second and CPU time per message, at several batch sizes."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from google.cloud import pubsub_v1

from hedged_pubsub.cli.bench.clients import Client, publisher
from hedged_pubsub.cli.bench.pairs import Pairs, measured_in_pairs
from hedged_pubsub.cli.bench.spread import Spread, median, ratios
from hedged_pubsub.cli.bench.targets import Target
from hedged_pubsub.cli.open_loop import MeasurementError

# What a program may well publish before it looks at the first result; and enough batches for the
# server never to wait.
_MESSAGES_IN_FLIGHT: Final = 2_000
_MIN_BATCHES_IN_FLIGHT: Final = 20
_WARM_UP_SHARE: Final = 0.25
_MAX_REQUEST: Final = 10_000_000
# What a message takes in a request beside its data, generously.
_OVERHEAD: Final = 100
# A batch goes out because it is full, never because it has waited.
_PATIENT: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """One measurement.

    Attributes:
        per_second: Messages per second.
        cpu: CPU seconds per message, of the whole process.
    """

    per_second: float
    cpu: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputJob:
    """Publish as fast as a bounded number of messages in flight allows.

    Attributes:
        client: Which client.
        address: The server's.
        topic: Full name of the topic.
        batch: Messages a batch.
        size: Bytes a message.
        seconds: How long.
    """

    client: Client
    address: str
    topic: str
    batch: int
    size: int
    seconds: float

    def run(self) -> Rate:
        """Measure, with a client of its own that is warm."""
        with publisher(self.client, self.address, batch_settings(self.batch)) as made:
            data = b"x" * self.size

            def publish() -> Future[str]:
                future: Future[str] = made.publish(self.topic, data)
                return future

            in_flight: collections.deque[Future[str]] = collections.deque()
            _publish_for(self.seconds * _WARM_UP_SHARE, publish, self.batch, in_flight)
            _wait_for(len(in_flight) - 1, in_flight)  # the last batch is still open
            cpu, start = time.process_time(), time.perf_counter()
            batches = _publish_for(self.seconds, publish, self.batch, in_flight)
            made.stop()
            _wait_for(len(in_flight), in_flight)
            messages = batches * self.batch
            return Rate(
                per_second=messages / (time.perf_counter() - start),
                cpu=(time.process_time() - cpu) / messages,
            )


def _publish_for(
    seconds: float,
    publish: Callable[[], Future[str]],
    batch: int,
    in_flight: collections.deque[Future[str]],
) -> int:
    """Publish whole batches; keep the last future of each, which stands for its batch."""
    batches = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(batch - 1):
            publish()
        in_flight.append(publish())
        batches += 1
        if len(in_flight) > window(batch):
            # For half of them: so this thread is woken once in a while, not by every batch.
            _wait_for(window(batch) // 2, in_flight)
    return batches


def _wait_for(count: int, in_flight: collections.deque[Future[str]]) -> None:
    for _ in range(count):
        in_flight.popleft().result(_PATIENT)


def batch_settings(batch: int) -> pubsub_v1.types.BatchSettings:
    """Return the settings with which both clients send batches of exactly that many messages.

    Both send a batch when the message arrives that would make it ``max_messages``, without that
    message; only of one message do they make a batch at once.
    """
    return pubsub_v1.types.BatchSettings(
        max_messages=1 if batch == 1 else batch + 1, max_bytes=_MAX_REQUEST, max_latency=_PATIENT
    )


def window(batch: int) -> int:
    """Return how many batches of that many messages are in flight at most."""
    return max(_MIN_BATCHES_IN_FLIGHT, _MESSAGES_IN_FLIGHT // batch)


def fits(batch: int, size: int) -> bool:
    """Tell whether the service takes a batch in one request."""
    return batch * (size + _OVERHEAD) <= _MAX_REQUEST


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputRow:
    """Both clients at one batch and message size.

    Attributes:
        target: Name of the server.
        batch: Messages a batch.
        size: Bytes a message.
        official_per_second: Messages per second, median of the repeats; the others likewise.
        hedged_per_second: That of the hedged publisher.
        speedup: Hedged over official messages per second.
        official_cpu_us: CPU microseconds per message.
        hedged_cpu_us: That of the hedged publisher.
        cpu_saving: Official over hedged CPU time.
    """

    target: str
    batch: int
    size: int
    official_per_second: float
    hedged_per_second: float
    speedup: Spread
    official_cpu_us: float
    hedged_cpu_us: float
    cpu_saving: Spread


def measure_throughput(
    target: Target, *, batch: int, size: int, seconds: float, repeats: int, tick: Callable[[], None]
) -> ThroughputRow:
    """Measure both clients at one batch and message size.

    Raises:
        MeasurementError: If a publish fails, or batches are not of the size that was asked for.
    """

    def job(client: Client, topic: str) -> ThroughputJob:
        return ThroughputJob(
            client=client,
            address=target.address,
            topic=topic,
            batch=batch,
            size=size,
            seconds=seconds,
        )

    def check(topic: str) -> None:
        sizes = target.batch_sizes(topic)
        if sizes - {batch}:
            raise MeasurementError(f"batches of {batch} messages were sent as {sorted(sizes)}")

    pairs: Pairs[Rate] = measured_in_pairs(target, job, repeats=repeats, check=check, tick=tick)
    return ThroughputRow(
        target=target.name,
        batch=batch,
        size=size,
        official_per_second=median(pairs.official, lambda rate: rate.per_second),
        hedged_per_second=median(pairs.hedged, lambda rate: rate.per_second),
        speedup=ratios(pairs.hedged, pairs.official, lambda rate: rate.per_second),
        official_cpu_us=1e6 * median(pairs.official, lambda rate: rate.cpu),
        hedged_cpu_us=1e6 * median(pairs.hedged, lambda rate: rate.cpu),
        cpu_saving=ratios(pairs.official, pairs.hedged, lambda rate: rate.cpu),
    )
