"""Threads and memory: with everything stalled, and after many batches."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from hedged_pubsub import HedgingSettings
from hedged_pubsub.cli.bench.clients import Client, publisher
from hedged_pubsub.cli.bench.process import MeasuringProcess
from hedged_pubsub.cli.bench.resources import resident_bytes, threads
from hedged_pubsub.cli.bench.throughput import batch_settings
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

_TOPIC: Final = "stalled"
_WARM_UP: Final = 50
_PATIENCE: Final = 60.0
# Longer than any measurement here takes.
_FOREVER: Final = 600.0
# A process is settled when it needs less of a core than this for so long.
_SETTLED_SHARE: Final = 0.2
_SETTLED_SECONDS: Final = 0.5
_MAX_SETTLE_SECONDS: Final = 60.0
# So many batches go out together, and the next ones when all of these are stored.
_ENDURANCE_WINDOW: Final = 400

# What is left open until the process ends. Closing a channel or a server under stalled requests
# would make each of the official client's threads fail aloud.
_left_open = contextlib.ExitStack()


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What stalled messages take.

    Attributes:
        threads: Threads more than before.
        resident_bytes: Resident memory more than before, at its peak; None where the system does
            not tell.
        traced_bytes: What Python allocated for them, as ``tracemalloc`` counts; None if it was
            not asked to count.
    """

    threads: int
    resident_bytes: int | None
    traced_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StallJob:
    """Publish to a server that does not answer, and look at what that takes.

    Attributes:
        client: Which client.
        messages: How many messages, of 100 bytes.
        batch: Messages a batch.
        trace: Whether to count Python's allocations, which slows everything down.
    """

    client: Client
    messages: int
    batch: int
    trace: bool

    def run(self) -> Held:
        """Measure. The process is of no use afterwards: its requests are still open."""
        script = FaultScript(faults=[Stall(_FOREVER, topic=_TOPIC)])
        server = _left_open.enter_context(PubSubServer(script, process=True))
        made = _left_open.enter_context(
            publisher(self.client, server.address, batch_settings(self.batch))
        )
        warm = server.create_topic("warm")
        # One more, so that all batches before it are complete.
        futures = [made.publish(warm, b"x" * 100) for _ in range(_WARM_UP * self.batch + 1)]
        futures[-2].result(_PATIENCE)
        topic = server.create_topic(_TOPIC)
        _settle()
        if self.trace:
            tracemalloc.start()
        idle_threads, idle_bytes = threads(), resident_bytes()
        # A program that publishes keeps the futures, or the client does.
        futures = [made.publish(topic, b"x" * 100) for _ in range(self.messages)]
        peak = _settle()
        traced = tracemalloc.get_traced_memory()[0] if self.trace else None
        tracemalloc.stop()
        return Held(
            threads=threads() - idle_threads,
            resident_bytes=None if peak is None or idle_bytes is None else peak - idle_bytes,
            traced_bytes=traced,
        )


def _settle() -> int | None:
    """Wait until this process has little left to do; return the most memory that was resident."""
    peak = 0
    give_up = time.monotonic() + _MAX_SETTLE_SECONDS
    while time.monotonic() < give_up:
        cpu = time.process_time()
        time.sleep(_SETTLED_SECONDS)
        peak = max(peak, resident_bytes() or 0)
        if time.process_time() - cpu < _SETTLED_SHARE * _SETTLED_SECONDS:
            break
    return peak or None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldRow:
    """Both clients with messages that are not answered.

    Attributes:
        messages: How many.
        batches: In how many batches.
        official_threads: Threads more than idle.
        hedged_threads: Those of the hedged publisher.
        official_traced_bytes: Bytes a message that Python allocated.
        hedged_traced_bytes: Those of the hedged publisher.
        official_resident_bytes: Bytes a message by which resident memory grew; None where the
            system does not tell.
        hedged_resident_bytes: Those of the hedged publisher.
    """

    messages: int
    batches: int
    official_threads: int
    hedged_threads: int
    official_traced_bytes: float
    hedged_traced_bytes: float
    official_resident_bytes: float | None
    hedged_resident_bytes: float | None


def measure_held(*, messages: int, batch: int, tick: Callable[[], None]) -> HeldRow:
    """Measure what stalled messages take in both clients.

    Raises:
        MeasurementError: If a publish fails.
    """

    def held(client: Client, *, trace: bool) -> Held:
        with MeasuringProcess() as process:
            result = process.run(
                StallJob(client=client, messages=messages, batch=batch, trace=trace)
            )
        tick()
        return result

    def per_message(value: int | None) -> float | None:
        return None if value is None else value / messages

    # Memory that the system counts and memory that Python counts: each would disturb the other.
    official, hedged = held(Client.OFFICIAL, trace=False), held(Client.HEDGED, trace=False)
    official_traced, hedged_traced = (
        held(Client.OFFICIAL, trace=True),
        held(Client.HEDGED, trace=True),
    )
    return HeldRow(
        messages=messages,
        batches=messages // batch,
        official_threads=official.threads,
        hedged_threads=hedged.threads,
        official_traced_bytes=(official_traced.traced_bytes or 0) / messages,
        hedged_traced_bytes=(hedged_traced.traced_bytes or 0) / messages,
        official_resident_bytes=per_message(official.resident_bytes),
        hedged_resident_bytes=per_message(hedged.resident_bytes),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Resident memory in bytes; None where the system does not tell."""

    early: int | None
    late: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EnduranceJob:
    """Publish many batches, some of which stall, and look at the memory early and late.

    Attributes:
        client: Which client.
        batches: How many, of one message each.
        early: After how many of them to look first.
        size: Bytes a message.
        stall_rate: Share of requests that stall.
        stall: How long, in seconds.
        hedging: The hedged publisher's settings.
    """

    client: Client
    batches: int
    early: int
    size: int
    stall_rate: float
    stall: float
    hedging: HedgingSettings

    def run(self) -> Growth:
        """Measure."""
        script = FaultScript(faults=[Stall(self.stall, probability=self.stall_rate)])
        with (
            PubSubServer(script, process=True) as server,
            publisher(self.client, server.address, batch_settings(1), self.hedging) as made,
        ):
            topic = server.create_topic(_TOPIC)

            def publish(batches: int) -> None:
                futures: list[Future[str]] = []
                for _ in range(batches):
                    futures.append(made.publish(topic, b"x" * self.size))
                    if len(futures) == _ENDURANCE_WINDOW:
                        wait(futures)
                wait(futures)

            def wait(futures: list[Future[str]]) -> None:
                for future in futures:
                    future.result(_PATIENCE)
                futures.clear()
                server.clear()  # or its memory, on the same machine, would grow instead

            publish(self.early)
            early = resident_bytes()
            publish(self.batches - self.early)
            late = resident_bytes()
            made.stop()
        return Growth(early=early, late=late)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnduranceRow:
    """Both clients' resident memory early and late, in bytes; None where the system does not tell.

    Attributes:
        batches: Batches that were published, of one message each.
        early: After how many of them the first look was.
        size: Bytes a message.
        official: The official client.
        hedged: The hedged publisher.
    """

    batches: int
    early: int
    size: int
    official: Growth
    hedged: Growth


def measure_endurance(*, batches: int, tick: Callable[[], None]) -> EnduranceRow:
    """Measure how memory grows over many batches of 32 KiB of which 5 % stall.

    Raises:
        MeasurementError: If a publish fails.
    """
    early, size = batches // 10, 32 * 1024
    grown = {}
    for client in Client:
        with MeasuringProcess() as process:
            grown[client] = process.run(
                EnduranceJob(
                    client=client,
                    batches=batches,
                    early=early,
                    size=size,
                    stall_rate=0.05,
                    stall=0.2,
                    hedging=HedgingSettings(hedge_delay=0.1),
                )
            )
        tick()
    return EnduranceRow(
        batches=batches,
        early=early,
        size=size,
        official=grown[Client.OFFICIAL],
        hedged=grown[Client.HEDGED],
    )
