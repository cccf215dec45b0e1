"""Latency of a single publish: the next one starts when the last one is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.cloud import pubsub_v1

from hedged_pubsub.cli.bench.clients import Client, publisher
from hedged_pubsub.cli.bench.pairs import Pairs, measured_in_pairs
from hedged_pubsub.cli.bench.spread import Spread, median, ratios
from hedged_pubsub.cli.bench.targets import Target
from hedged_pubsub.cli.report import nearest_rank

SETTINGS: Final = {
    "one message a batch": pubsub_v1.types.BatchSettings(max_messages=1),
    # A lone message waits for max_latency, 10 ms.
    "default": pubsub_v1.types.BatchSettings(),
}
"""The batch settings that are measured, by name."""

_WARM_UP: Final = 20
_PATIENCE: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """One measurement, in seconds."""

    p50: float
    p99: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyJob:
    """Publish one message after the other.

    Attributes:
        client: Which client.
        address: The server's.
        topic: Full name of the topic.
        settings: Name of the batch settings.
        seconds: How long.
    """

    client: Client
    address: str
    topic: str
    settings: str
    seconds: float

    def run(self) -> Latency:
        """Measure, with a client of its own that is warm."""
        with publisher(self.client, self.address, SETTINGS[self.settings]) as made:
            data = b"x" * 100
            for _ in range(_WARM_UP):
                made.publish(self.topic, data).result(_PATIENCE)
            latencies = []
            clock = time.perf_counter
            end = clock() + self.seconds
            while (start := clock()) < end:
                made.publish(self.topic, data).result(_PATIENCE)
                latencies.append(clock() - start)
            made.stop()
        latencies.sort()
        return Latency(p50=nearest_rank(latencies, 500), p99=nearest_rank(latencies, 990))


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyRow:
    """Both clients with one kind of batch settings.

    Attributes:
        target: Name of the server.
        settings: Name of the batch settings.
        official_p50_ms: Median latency in milliseconds, median of the repeats; others likewise.
        hedged_p50_ms: That of the hedged publisher.
        p50_ratio: Hedged over official medians.
        official_p99_ms: 99th percentile.
        hedged_p99_ms: That of the hedged publisher.
        p99_ratio: Hedged over official 99th percentiles.
    """

    target: str
    settings: str
    official_p50_ms: float
    hedged_p50_ms: float
    p50_ratio: Spread
    official_p99_ms: float
    hedged_p99_ms: float
    p99_ratio: Spread


def measure_latency(
    target: Target, *, settings: str, seconds: float, repeats: int, tick: Callable[[], None]
) -> LatencyRow:
    """Measure both clients with one kind of batch settings.

    Raises:
        MeasurementError: If a publish fails.
    """

    def job(client: Client, topic: str) -> LatencyJob:
        return LatencyJob(
            client=client,
            address=target.address,
            topic=topic,
            settings=settings,
            seconds=seconds,
        )

    pairs: Pairs[Latency] = measured_in_pairs(target, job, repeats=repeats, tick=tick)
    return LatencyRow(
        target=target.name,
        settings=settings,
        official_p50_ms=1e3 * median(pairs.official, lambda latency: latency.p50),
        hedged_p50_ms=1e3 * median(pairs.hedged, lambda latency: latency.p50),
        p50_ratio=ratios(pairs.hedged, pairs.official, lambda latency: latency.p50),
        official_p99_ms=1e3 * median(pairs.official, lambda latency: latency.p99),
        hedged_p99_ms=1e3 * median(pairs.hedged, lambda latency: latency.p99),
        p99_ratio=ratios(pairs.hedged, pairs.official, lambda latency: latency.p99),
    )
