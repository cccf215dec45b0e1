"""Recorded requests once more, hedged, on a virtual clock.

What decides is what decides in production: an `AttemptEngine` for each batch, the token bucket and
the measured delay. Originals arrive on an open-loop schedule and take what was recorded, in that
order; each hedge takes an independent draw from all that was recorded.

A batch that is answered before its hedge timer is due only refills the bucket and needs no engine.
With a fixed delay it needs no event either: how many refills came before a timer is a matter of
counting. That is why a million take seconds; a test compares it with a replay of every batch.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final

from hedged_pubsub._core.engine import AttemptEngine
from hedged_pubsub._core.events import (
    ORIGINAL,
    ORIGINAL_SUCCEEDED,
    Committed,
    Event,
    Failed,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
    Woke,
)
from hedged_pubsub._core.hedge_budget import HedgeBudget
from hedged_pubsub._core.hedge_delay import HedgeDelay, MeasuredDelay
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.waiting import Waiting
from hedged_pubsub.cli.measures import nearest_rank

# The official client's retry timeout, after which a batch gets no more hedges.
_TOTAL_TIMEOUT: Final = 600.0

_HEDGE_TIMED_OUT: Final = TimeoutError("the hedge took longer than it may")

# Hedges of one request, and of its neighbours, shall not take neighbouring draws.
_STRIDE: Final = 7919

# What happens at one and the same time happens in this order: an answer spares the timer.
_UNHEDGED, _ANSWERED, _TIMED_OUT, _TIMER = range(4)


@dataclass(frozen=True, slots=True)
class Latencies(Sequence[float]):
    """Latencies in rising order: the first of ``fast``, which predictions share, and ``slow``."""

    fast: Sequence[float]
    fast_count: int
    slow: Sequence[float]

    def __len__(self) -> int:
        """Return how many there are."""
        return self.fast_count + len(self.slow)

    def __getitem__(self, index: Any) -> Any:
        """Return the one at an index from 0."""
        return self.fast[index] if index < self.fast_count else self.slow[index - self.fast_count]

    def percentile(self, parts: int) -> float:
        """Return a percentile by nearest rank, in ten-thousandths."""
        return nearest_rank(self, parts)


class Trace:
    """Recorded requests as an open-loop load of ``rate`` a second; the seed is for the hedges."""

    def __init__(self, latencies: Sequence[float], *, rate: float, seed: int) -> None:
        self.latencies = latencies
        self.recorded = Latencies(sorted(latencies), len(latencies), ())
        self.rate = rate
        ends = [number / rate + latency for number, latency in enumerate(latencies)]
        by_end = sorted(range(len(ends)), key=ends.__getitem__)
        self._ends = [ends[number] for number in by_end]
        self._latencies_by_end = [latencies[number] for number in by_end]
        self._draws = list(latencies)
        random.Random(seed).shuffle(self._draws)  # noqa: S311 - no secret

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.latencies)

    def hedge_latency(self, number: int, hedge: int) -> float:
        """Return what a hedge takes, in seconds: the same whatever the settings, which is fair."""
        return self._draws[(number + hedge * _STRIDE) % len(self._draws)]

    def slower_than(self, delay: float) -> list[int]:
        """Return the numbers of the requests that take longer than ``delay`` seconds."""
        return [number for number, latency in enumerate(self.latencies) if latency > delay]

    def ends_of_others(self, delay: float) -> list[float]:
        """Return when those end that do not, in rising order."""
        return list(compress(self._ends, [latency <= delay for latency in self._latencies_by_end]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a setting would have done: hedges, sent or suppressed, are per batch."""

    settings: HedgingSettings
    latencies: Latencies
    slower: float  # share of the batches that were not answered before the first hedge was due
    extra_requests: float
    suppressed: float


def predict(trace: Trace, settings: HedgingSettings) -> Prediction:
    """Replay the trace with a setting. The token bucket is full when it begins."""
    return _Replay(trace, settings).run()


class _Replay:
    """One run; made for one use."""

    def __init__(self, trace: Trace, settings: HedgingSettings) -> None:
        self._trace = trace
        self._settings = settings
        delay = settings.hedge_delay
        self._measured = MeasuredDelay(delay) if isinstance(delay, HedgeDelay) else None
        self._delay = settings.initial_hedge_delay
        self._budget = HedgeBudget(settings)
        self._waiting = Waiting()
        self._bucket = self._budget.bucket
        while self._bucket.tokens < settings.max_tokens:
            self._bucket.refill()
        self._engines: dict[int, AttemptEngine] = {}
        self._events: list[tuple[float, int, int, int]] = []
        # When batches without an event ended, and how many of these refills are made.
        self._ends: list[float] = []
        self._refilled = 0
        self._fast: list[float] = []
        self._slow: list[float] = []
        self._hedges = 0
        self._suppressed = 0

    def run(self) -> Prediction:
        trace = self._trace
        numbers: Iterable[int] = range(len(trace))
        if self._measured is None:
            numbers = trace.slower_than(self._delay)
            self._ends = trace.ends_of_others(self._delay)
        for number in numbers:
            now = number / trace.rate
            self._advance(now)
            self._commit(number, now)
        self._advance(math.inf)
        count = len(trace) - len(self._slow)
        return Prediction(
            settings=self._settings,
            latencies=Latencies(trace.recorded.fast, count, sorted(self._slow))
            if self._measured is None
            else Latencies((), 0, sorted(self._fast + self._slow)),
            slower=len(self._slow) / len(trace),
            extra_requests=self._hedges / len(trace),
            suppressed=self._suppressed / len(trace),
        )

    def _commit(self, number: int, now: float) -> None:
        latency = self._trace.latencies[number]
        if latency <= self._delay:
            heapq.heappush(self._events, (now + latency, _UNHEDGED, number, ORIGINAL))
            return
        engine = self._engines[number] = AttemptEngine(
            hedge_delay=self._delay,
            budget=self._budget,
            waiting=self._waiting,
            total_timeout=_TOTAL_TIMEOUT,
        )
        self._tell(number, engine, Committed(), now)
        self._set_timer(number, engine)

    def _advance(self, until: float) -> None:
        """Let happen what happens until then."""
        events, engines = self._events, self._engines
        while events and events[0][0] <= until:
            now, kind, number, attempt = heapq.heappop(events)
            if kind == _UNHEDGED:
                latency = self._trace.latencies[number]
                self._fast.append(latency)
                self._bucket.refill()
                self._measure(latency)
                continue
            engine = engines.get(number)
            if engine is None:
                continue  # decided: a loser's answer, a timer that is not needed any more
            if kind == _TIMER:
                self._refill(now)
                self._tell(number, engine, Woke(), now)
                self._set_timer(number, engine)
            elif kind == _TIMED_OUT:
                self._tell(number, engine, Failed(attempt, _HEDGE_TIMED_OUT), now)
            else:
                event = Succeeded(attempt) if attempt else ORIGINAL_SUCCEEDED
                self._tell(number, engine, event, now)

    def _refill(self, now: float) -> None:
        """Make the refills of the batches without an event that ended until now."""
        end = bisect_right(self._ends, now, self._refilled)
        bucket = self._bucket
        missing = (self._settings.max_tokens - bucket.tokens) / self._settings.refill_ratio
        # A full bucket takes no more: then the rest need not be made.
        for _ in range(min(end - self._refilled, math.ceil(missing) + 1)):
            bucket.refill()
        self._refilled = end

    def _set_timer(self, number: int, engine: AttemptEngine) -> None:
        if (due := engine.next_wakeup) is not None:
            heapq.heappush(self._events, (due, _TIMER, number, ORIGINAL))

    def _tell(self, number: int, engine: AttemptEngine, event: Event, now: float) -> None:
        for command in engine.handle(event, now):
            if isinstance(command, Start):
                self._start(number, command, now)
            elif isinstance(command, Suppressed):
                self._suppressed += 1
            elif isinstance(command, Resolve):
                self._measure(engine.original_latency, lost=command.attempt != ORIGINAL)
                del self._engines[number]
                hedged = now - number / self._trace.rate
                self._slow.append(hedged if command.attempt else self._trace.latencies[number])

    def _measure(self, original_latency: float | None, *, lost: bool = False) -> None:
        if self._measured is not None and original_latency is not None:
            self._measured.record(original_latency, lost=lost)
            self._delay = self._measured.current

    def _start(self, number: int, command: Start, now: float) -> None:
        latency, kind = self._trace.latencies[number], _ANSWERED
        if command.timeout is not None:
            self._hedges += 1
            latency = self._trace.hedge_latency(number, command.attempt)
            if latency > command.timeout:
                latency, kind = command.timeout, _TIMED_OUT
        heapq.heappush(self._events, (now + latency, kind, number, command.attempt))
