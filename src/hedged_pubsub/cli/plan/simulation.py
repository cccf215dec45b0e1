"""Recorded requests once more, hedged, on a virtual clock.

What decides is what decides in production: an `AttemptEngine` for each batch, the token bucket and
the measured delay. Originals arrive on an open-loop schedule and take what was recorded, in that
order; each hedge takes an independent draw from all that was recorded.

A batch that is answered before its hedge timer is due only refills the bucket: it needs no engine
and no event. That is why a million take seconds; a test compares it with a replay of every batch.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hedged_pubsub._core.engine import AttemptEngine
from hedged_pubsub._core.events import (
    ORIGINAL,
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
from hedged_pubsub._core.hedge_delay import MIN_HEDGE_DELAY, HedgeDelay, MeasuredDelay
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.waiting import Waiting

# The official client's retry timeout, after which a batch gets no more hedges.
_TOTAL_TIMEOUT: Final = 600.0

_HEDGE_TIMED_OUT: Final = TimeoutError("the hedge took longer than it may")

# Hedges of one request, and of its neighbours, shall not take neighbouring draws.
_STRIDE: Final = 7919

# What happens at one and the same time happens in this order: an answer spares the timer.
_ANSWERED, _TIMED_OUT, _TIMER = range(3)


class Trace:
    """Recorded requests as an open-loop load of ``rate`` a second; the seed is for the hedges."""

    def __init__(self, latencies: Sequence[float], *, rate: float, seed: int) -> None:
        self.latencies = latencies
        self.recorded = sorted(latencies)
        self.rate = rate
        ends = [number / rate + latency for number, latency in enumerate(latencies)]
        for number, latency in enumerate(latencies):
            if not latency:  # it ends after what else is due when it is sent
                ends[number] = math.nextafter(ends[number], math.inf)
        self.by_end = sorted(range(len(ends)), key=ends.__getitem__)
        self.ends = sorted(ends)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a setting would have done: hedges, sent or suppressed, are per batch."""

    settings: HedgingSettings
    latencies: Sequence[float]  # in rising order
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
        # When, which of those at one time comes first, the number of the batch and the attempt.
        self._events: list[tuple[float, int, int, int, Event]] = []
        self._hedged: dict[int, float] = {}  # latencies by number, once they are known
        self._ended = 0  # how many of the trace's ends have passed
        self._hedges = 0
        self._suppressed = 0

    def run(self) -> Prediction:
        trace, hedged, count = self._trace, self._hedged, len(self._trace)
        for number in trace.slower_than(MIN_HEDGE_DELAY):  # no delay is shorter
            now = number / trace.rate
            self._advance(now)
            if trace.latencies[number] > self._delay:
                hedged[number] = math.nan
                self._engines[number] = AttemptEngine(
                    hedge_delay=self._delay,
                    budget=self._budget,
                    waiting=self._waiting,
                    total_timeout=_TOTAL_TIMEOUT,
                )
                self._tell(number, Committed(), now)
        self._advance(math.inf)
        latencies = trace.recorded[: count - len(hedged)] + sorted(hedged.values())
        if self._measured is not None:  # a fast one may have taken longer than a hedged one
            latencies = sorted(hedged.get(n, latency) for n, latency in enumerate(trace.latencies))
        return Prediction(
            settings=self._settings,
            latencies=latencies,
            slower=len(hedged) / count,
            extra_requests=self._hedges / count,
            suppressed=self._suppressed / count,
        )

    def _advance(self, until: float) -> None:
        """Let happen what happens until then."""
        while self._events and self._events[0][0] <= until:
            now, _, number, _, event = heapq.heappop(self._events)
            self._end_unhedged(now)
            self._tell(number, event, now)
        self._end_unhedged(until)

    def _end_unhedged(self, now: float) -> None:
        """Count what was answered in time until now, before what else happens at that time."""
        start, bucket = self._ended, self._bucket
        self._ended = bisect_right(self._trace.ends, now, start)
        if self._measured is None and bucket.tokens == self._settings.max_tokens:
            return  # it takes no more
        refill, hedged, measured = bucket.refill, self._hedged, self._measured is not None
        for number in self._trace.by_end[start : self._ended]:
            if number not in hedged:
                refill()
                if measured:
                    self._measure(self._trace.latencies[number])

    def _tell(self, number: int, event: Event, now: float) -> None:
        engine = self._engines.get(number)
        if engine is None:
            return  # decided: a loser's answer, a timer that is not needed any more
        for command in engine.handle(event, now):
            if isinstance(command, Start):
                self._start(number, command, now)
            elif isinstance(command, Suppressed):
                self._suppressed += 1
            elif isinstance(command, Resolve):
                self._measure(engine.original_latency, lost=command.attempt != ORIGINAL)
                del self._engines[number]
                hedged = now - number / self._trace.rate
                self._hedged[number] = hedged if command.attempt else self._trace.latencies[number]
        if isinstance(event, (Committed, Woke)) and (due := engine.next_wakeup) is not None:
            heapq.heappush(self._events, (due, _TIMER, number, ORIGINAL, Woke()))

    def _measure(self, original_latency: float | None, *, lost: bool = False) -> None:
        if self._measured is not None and original_latency is not None:
            self._measured.record(original_latency, lost=lost)
            self._delay = self._measured.current

    def _start(self, number: int, command: Start, now: float) -> None:
        attempt, latency, kind = command.attempt, self._trace.latencies[number], _ANSWERED
        event: Event = Succeeded(attempt)
        if command.timeout is not None:
            self._hedges += 1
            latency = self._trace.hedge_latency(number, attempt)
            if latency > command.timeout:
                event, latency = Failed(attempt, _HEDGE_TIMED_OUT), command.timeout
                kind = _TIMED_OUT
        heapq.heappush(self._events, (now + latency, kind, number, attempt, event))
