"""Tails: an open-loop schedule through both clients, beside the best that is possible."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from google.cloud import pubsub_v1

from hedged_pubsub import HedgingSettings
from hedged_pubsub.cli.bench.best import best_possible
from hedged_pubsub.cli.bench.clients import Client, publisher
from hedged_pubsub.cli.bench.process import MeasuringProcess
from hedged_pubsub.cli.demo import warm_up_publishes
from hedged_pubsub.cli.open_loop import MeasurementError, run_open_loop, warm_up
from hedged_pubsub.cli.report import nearest_rank
from hedged_pubsub.testing import FaultScript, LogNormal, Pareto, PubSubServer, Stall

# What publishing within a region looks like from the outside: a few milliseconds, some spread.
_BODY: Final = LogNormal(median=0.005, sigma=0.4)
_ONE_MESSAGE: Final = pubsub_v1.types.BatchSettings(max_messages=1)
# The longest stall, and what a busy machine may need beyond it.
_PATIENCE: Final = 60.0

HEDGING: Final = HedgingSettings(hedge_delay=0.1)
"""The hedge delay is a little above the slowest healthy answer; the budget is the default one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What the server does.

    Attributes:
        name: In words.
        script: For the server, from the first scheduled message on.
    """

    name: str
    script: FaultScript


def cases(seed: int, *, duration: float) -> tuple[Case, ...]:
    """Return the cases.

    Args:
        seed: Of the draws.
        duration: How long the schedule is, in seconds.
    """
    start = 0.25 * duration
    length, stall = min(5.0, start), min(10.0, duration / 2)
    return (
        Case(
            name="1 % stall for 2 s",
            script=FaultScript(latency=_BODY, faults=[Stall(2.0, probability=0.01)], seed=seed),
        ),
        Case(
            name="4 % stall for 0.3 s, 1 % for 4 s",
            script=FaultScript(
                latency=_BODY,
                faults=[Stall(4.0, probability=0.01), Stall(0.3, probability=0.04)],
                seed=seed,
            ),
        ),
        Case(
            # 2.7 % are slower than the hedge delay, 0.1 % than 1.6 s.
            name="Pareto from 5 ms, exponent 1.2",
            script=FaultScript(latency=Pareto(minimum=0.005, alpha=1.2), seed=seed),
        ),
        Case(
            name=f"all stall for {stall:g} s, within a window of {length:g} s",
            script=FaultScript(
                latency=_BODY, faults=[Stall(stall, between=(start, start + length))], seed=seed
            ),
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """One client's run.

    Attributes:
        latencies: Seconds from the scheduled time, by message.
        lateness: Seconds by which each message was published late: this machine's part.
        requests: Requests that the server got.
    """

    latencies: tuple[float, ...]
    lateness: tuple[float, ...]
    requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TailJob:
    """Publish a schedule through one client.

    Attributes:
        client: Which client.
        script: For the server, once the client is warm.
        publishes: How many messages, each a request of its own.
        rate: Messages per second.
        hedging: The hedged publisher's settings.
    """

    client: Client
    script: FaultScript
    publishes: int
    rate: float
    hedging: HedgingSettings = HEDGING

    def run(self) -> Tail:
        """Measure. The token bucket is full when the schedule begins."""
        with (
            PubSubServer(FaultScript(latency=_BODY), process=True) as server,
            publisher(self.client, server.address, _ONE_MESSAGE, self.hedging) as made,
        ):
            topic = server.create_topic("tails")

            def publish(number: int) -> Future[str]:
                future: Future[str] = made.publish(topic, b"message %d" % number)
                return future

            count = warm_up_publishes(
                max_tokens=self.hedging.max_tokens, refill_ratio=self.hedging.refill_ratio
            )
            warm_up(publish, count, timeout=_PATIENCE)
            server.clear()
            # As in the demo: a full collection takes some 40 ms, which would be in the tail.
            gc.collect()
            gc.freeze()
            server.set_script(self.script)
            run = run_open_loop(
                publish,
                publishes=self.publishes,
                rate=self.rate,
                timeout=_PATIENCE,
                on_progress=lambda _: None,
            )
            stored = {message.data for message in server.messages(topic)}
            if len(stored) != self.publishes:
                raise MeasurementError(
                    f"{self.publishes} publishes succeeded, but {len(stored)} messages are stored"
                )
            made.stop()
            return Tail(
                latencies=run.latencies,
                lateness=run.lateness,
                requests=len(server.attempts(topic)),
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class TailRow:
    """Both clients in one case, and the best that is possible with that hedge delay.

    Attributes:
        case: What the server does.
        publishes: How many messages.
        hedge_delay: In seconds.
        official: Latencies in seconds, by message.
        hedged: Those of the hedged publisher.
        best: Those of a publisher without a budget, on the same draws.
        lateness: The 99th percentile of how late this machine was, in seconds.
        extra_requests: Requests of the hedged publisher beyond one a message.
        best_extra_requests: Those of the publisher without a budget.
        allowed_requests: What the budget allows: refill ratio times successes, and max tokens.
    """

    case: str
    publishes: int
    hedge_delay: float
    official: tuple[float, ...]
    hedged: tuple[float, ...]
    best: tuple[float, ...]
    lateness: float
    extra_requests: int
    best_extra_requests: int
    allowed_requests: float


def measure_tail(case: Case, *, publishes: int, rate: float, tick: Callable[[], None]) -> TailRow:
    """Measure both clients in one case.

    Raises:
        MeasurementError: If a publish fails or is not stored, or more requests were sent than the
            budget allows.
    """
    measured = {}
    for client in Client:
        with MeasuringProcess() as process:
            measured[client] = process.run(
                TailJob(client=client, script=case.script, publishes=publishes, rate=rate)
            )
        tick()
    official, hedged = measured[Client.OFFICIAL], measured[Client.HEDGED]
    best = best_possible(
        case.script, publishes=publishes, rate=rate, hedge_delay=HEDGING.initial_hedge_delay
    )
    row = TailRow(
        case=case.name,
        publishes=publishes,
        hedge_delay=HEDGING.initial_hedge_delay,
        official=official.latencies,
        hedged=hedged.latencies,
        best=best.latencies,
        lateness=nearest_rank(sorted(official.lateness + hedged.lateness), 990),
        extra_requests=hedged.requests - publishes,
        best_extra_requests=best.requests - publishes,
        allowed_requests=HEDGING.refill_ratio * publishes + HEDGING.max_tokens,
    )
    if row.extra_requests > row.allowed_requests:
        raise MeasurementError(
            f"{row.extra_requests} extra requests, but the budget allows {row.allowed_requests:g}"
        )
    return row
