"""Batches that run through the core on a virtual clock, with nothing left out."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hedged_pubsub import HedgingSettings
from hedged_pubsub._core import batching
from hedged_pubsub._core.events import (
    ORIGINAL,
    Event,
    Failed,
    Order,
    Resolve,
    Start,
    Succeeded,
    WakeAt,
)
from hedged_pubsub._core.runs import WOKE, Runs
from hedged_pubsub._core.token_bucket import TokenBucket

TIMERS_FIRST, ANSWERS_FIRST = 0, 2
"""What is due at the same time as an answer: a timer comes before it, or after it."""


def core_batch(total_timeout: float = 600.0) -> batching.Batch:
    """Make an empty batch, which is all that the core needs."""
    return batching.Batch("topic", total_timeout, has_extras=False)


def run(
    runs: Runs[batching.Batch],
    commits: Iterable[tuple[float, batching.Batch]],
    answer: Callable[[int, Start], tuple[float, Event]],
    note: Callable[[int, Order, float], object],
    timers: int = TIMERS_FIRST,
) -> None:
    """Commit batches and carry out the orders about them, until nothing more is to come.

    Args:
        runs: What decides.
        commits: When each batch is committed, in rising order; a commit comes after all that is due
            at the same time.
        answer: Returns the seconds until an attempt ends, and how, by number of batch; ``inf`` for
            never.
        note: Called with the number of the batch, each order about it and the time.
        timers: ``TIMERS_FIRST`` or ``ANSWERS_FIRST``.
    """
    unique = itertools.count()
    batches: list[batching.Batch] = []
    due: list[tuple[float, int, int, int, int, Event | None]] = []
    for when, batch in commits:
        due.append((when, 3, len(batches), ORIGINAL, next(unique), None))
        batches.append(batch)
    while due:
        now, _, number, _, _, event = heapq.heappop(due)
        batch = batches[number]
        orders = runs.commit(batch, now) if event is None else runs.handle(batch, event, now)
        for order in orders:
            note(number, order, now)
            if isinstance(order, WakeAt):
                heapq.heappush(due, (order.when, timers, number, ORIGINAL, next(unique), WOKE))
            elif isinstance(order, Start):
                attempt = order.attempt
                assert runs.is_wanted(batch, attempt, now, is_logged=False)
                after, end = answer(number, order)
                if after < math.inf:
                    heapq.heappush(due, (now + after, 1, number, attempt, next(unique), end))


@dataclass(kw_only=True)
class Batch:
    """What became of a batch.

    Attributes:
        delay: The hedge delay it was committed with, in seconds.
        latency: Seconds from its commit to its success.
        hedges: How many were sent.
    """

    delay: float = math.nan
    latency: float = math.nan
    hedges: int = 0


def replay(
    latencies: Sequence[float],
    settings: HedgingSettings,
    *,
    hedge_latency: Callable[[int, int], float] | None = None,
    commits: Sequence[float] | None = None,
    bucket: TokenBucket | None = None,
) -> list[Batch]:
    """Run a batch for each latency, which is its original's; no attempt fails but by its timeout.

    Args:
        latencies: Seconds.
        settings: The publisher's.
        hedge_latency: Seconds that a hedge takes, by number of batch and hedge; by default what the
            original of a neighbour takes.
        commits: When each batch is committed, in rising order; by default twenty a second.
        bucket: The token bucket; a full one by default.
    """
    batches = [Batch() for _ in latencies]
    starts = commits or [number / 20 for number in range(len(latencies))]
    runs: Runs[batching.Batch] = Runs(settings)
    topic = runs.use("topic")
    topic.budget.bucket = bucket or full_bucket(settings)

    def answer(number: int, start: Start) -> tuple[float, Event]:
        if start.timeout is None:
            batches[number].delay = topic.hedge_delay
            return latencies[number], Succeeded(start.attempt)
        batches[number].hedges += 1
        hedge = start.attempt
        took = (
            hedge_latency(number, hedge)
            if hedge_latency is not None
            else latencies[(number + hedge) % len(latencies)]
        )
        if took > start.timeout:
            return start.timeout, Failed(start.attempt, TimeoutError())
        return took, Succeeded(start.attempt)

    def note(number: int, order: Order, now: float) -> None:
        if isinstance(order, Resolve):
            batches[number].latency = now - starts[number]

    run(runs, ((when, core_batch()) for when in starts), answer, note, ANSWERS_FIRST)
    return batches


def full_bucket(settings: HedgingSettings) -> TokenBucket:
    """Return a bucket that can take no more."""
    bucket = TokenBucket(settings.max_tokens, settings.refill_ratio)
    while bucket.tokens < settings.max_tokens:
        bucket.refill()
    return bucket
