"""Pairs of measurements: one client, the other, and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from hedged_pubsub.cli.bench.clients import Client
from hedged_pubsub.cli.bench.process import Job, MeasuringProcess
from hedged_pubsub.cli.bench.targets import Target

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Pairs(Generic[T]):
    """What was measured; the n-th of each were measured one after the other."""

    official: tuple[T, ...]
    hedged: tuple[T, ...]


def measured_in_pairs(
    target: Target,
    job: Callable[[Client, str], Job[T]],
    *,
    repeats: int,
    check: Callable[[str], None] | None = None,
    tick: Callable[[], None],
) -> Pairs[T]:
    """Measure both clients in turns, each in a process of its own.

    Args:
        target: The server.
        job: Makes the job for a client and a topic.
        repeats: Pairs.
        check: Looks at what the server got for a topic, while it still knows.
        tick: Called after each measurement.

    Raises:
        MeasurementError: If a job fails.
    """
    topic = target.create_topic()
    measured: dict[Client, list[T]] = {client: [] for client in Client}
    with MeasuringProcess() as official, MeasuringProcess() as hedged:
        processes = {Client.OFFICIAL: official, Client.HEDGED: hedged}
        for _ in range(repeats):
            for client, process in processes.items():
                measured[client].append(process.run(job(client, topic)))
                if check is not None:
                    check(topic)
                target.clear()
                tick()
    return Pairs(official=tuple(measured[Client.OFFICIAL]), hedged=tuple(measured[Client.HEDGED]))
