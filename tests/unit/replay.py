"""A replay of batches through the engine that leaves nothing out, for comparisons."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hedged_pubsub import HedgeDelay, HedgingSettings
from hedged_pubsub.engine import AttemptEngine
from hedged_pubsub.events import Committed, Event, Failed, Resolve, Start, Succeeded, Woke
from hedged_pubsub.hedge_delay import MeasuredDelay
from hedged_pubsub.token_bucket import TokenBucket


@dataclass(kw_only=True)
class Batch:
    """What became of a batch.

    Attributes:
        delay: The hedge delay it was committed with, in seconds.
        latency: Seconds from its commit to its success.
        hedges: How many were sent.
    """

    delay: float
    latency: float = math.nan
    hedges: int = 0


def replay(
    latencies: Sequence[float],
    settings: HedgingSettings,
    *,
    hedge_latency: Callable[[int, int], float],
    commits: Sequence[float],
    bucket: TokenBucket | None = None,
) -> list[Batch]:
    """Run every batch through an engine of its own, on a virtual clock.

    Args:
        latencies: Seconds that each batch's original takes.
        settings: The publisher's.
        hedge_latency: Seconds that a hedge takes, by number of batch and hedge.
        commits: When each batch is committed, in rising order.
        bucket: The token bucket; a full one by default.
    """
    measured = (
        MeasuredDelay(settings.hedge_delay)
        if isinstance(settings.hedge_delay, HedgeDelay)
        else None
    )
    bucket = bucket or full_bucket(settings)
    engines: list[AttemptEngine] = []
    batches: list[Batch] = []
    # An answer comes before a look at the same time, and both before a commit.
    answer, look, commit = range(3)
    events: list[tuple[float, int, int, int, Event]] = [
        (time, commit, number, 0, Committed()) for number, time in enumerate(commits)
    ]
    while events:
        now, kind, number, _, event = heapq.heappop(events)
        if kind == commit:
            delay = settings.initial_hedge_delay if measured is None else measured.current
            batches.append(Batch(delay=delay))
            engines.append(AttemptEngine(hedge_delay=delay, bucket=bucket, total_timeout=600))
        engine, batch = engines[number], batches[number]
        for command in engine.handle(event, now):
            if isinstance(command, Start):
                took = latencies[number]
                ended: Event = Succeeded(command.attempt)
                if command.timeout is not None:
                    batch.hedges += 1
                    took = hedge_latency(number, command.attempt)
                    if took > command.timeout:
                        took, ended = command.timeout, Failed(command.attempt, TimeoutError())
                heapq.heappush(events, (now + took, answer, number, command.attempt, ended))
            elif isinstance(command, Resolve):
                batch.latency = now - commits[number]
                if measured is not None and engine.original_latency is not None:
                    measured.record(engine.original_latency, lost=command.attempt > 0)
        if kind != answer and engine.next_wakeup is not None:
            heapq.heappush(events, (engine.next_wakeup, look, number, 0, Woke()))
    return batches


def full_bucket(settings: HedgingSettings) -> TokenBucket:
    """Return a bucket that can take no more."""
    bucket = TokenBucket(settings.max_tokens, settings.refill_ratio)
    while bucket.tokens < settings.max_tokens:
        bucket.refill()
    return bucket
