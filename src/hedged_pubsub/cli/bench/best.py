"""The best that any hedging could do: a yardstick for the tails."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from hedged_pubsub.testing.faults import Call, Decision, FaultDecider, FaultScript, Stall


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """What a publisher without a budget, without overhead and on an ideal network reaches.

    Attributes:
        latencies: Seconds, by message.
        requests: Requests that it sends.
    """

    latencies: tuple[float, ...]
    requests: int


def best_possible(script: FaultScript, *, publishes: int, rate: float, hedge_delay: float) -> Best:
    """Replay a schedule on a server's script, with a hedge at every look.

    The requests take their draws from the script in the order in which they arrive, as on the
    server itself: the originals meet what they would meet there, each hedge takes a fresh draw.

    Args:
        script: Of stalls and latencies.
        publishes: How many messages, each a request of its own.
        rate: Messages per second.
        hedge_delay: Seconds between the requests of one message.

    Raises:
        ValueError: If the script has other faults than stalls.
    """
    decider = FaultDecider(script)
    ends = [math.inf] * publishes
    requests = 0
    due = [(number / rate, number, 0) for number in range(publishes)]  # is a heap: it is sorted
    while due:
        now, number, attempt = heapq.heappop(due)
        if ends[number] <= now:
            continue
        requests += 1
        decision = decider.decide(
            Call(number=requests, topic="", attempt_number=attempt, elapsed=now)
        )
        ends[number] = min(ends[number], now + _seconds(decision))
        heapq.heappush(due, (now + hedge_delay, number, attempt + 1))
    return Best(
        latencies=tuple(end - number / rate for number, end in enumerate(ends)),
        requests=requests,
    )


def _seconds(decision: Decision) -> float:
    fault = decision.fault
    if fault is None:
        return decision.latency
    if isinstance(fault, Stall):
        return fault.seconds
    raise ValueError(f"script must have no other faults than Stall; got {fault!r}")
