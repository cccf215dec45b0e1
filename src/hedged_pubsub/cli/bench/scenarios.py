"""What is measured of both clients: workloads, and a row of numbers for each of their cases.

A row is as the JSON object has it. Where both clients have a number, the keys begin with
``official_`` and ``hedged_``; it is the median of the repeats, and ratios are spreads of pairs.
Every function that measures calls ``tick`` after each measurement, and raises MeasurementError if
one fails.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import grpc
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.cloud import pubsub_v1

from hedged_pubsub.cli.bench import jobs
from hedged_pubsub.cli.bench.jobs import TAIL_HEDGING, MeasuringProcess
from hedged_pubsub.cli.clients import CLIENTS, LATENCY, Client, use_server
from hedged_pubsub.cli.measures import PERCENTILES, Pair, nearest_rank, ratios
from hedged_pubsub.cli.report import MeasurementError, RefusedError
from hedged_pubsub.cli.values import EMULATOR, SERVER
from hedged_pubsub.testing import FaultScript, Pareto, PubSubServer, Stall
from hedged_pubsub.testing.emulator import (
    EmulatorNotInstalledError,
    find_emulator,
    running_emulator,
)
from hedged_pubsub.testing.faults import Call, FaultDecider

Row = Mapping[str, Any]
T = TypeVar("T")
Tick = Callable[[], None]

_PATIENCE = 5.0
"""Seconds for a server that is said to run to answer."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server that runs; only ours tells what it got."""

    name: str
    address: str
    server: PubSubServer | None = None

    def create_topic(self) -> str:
        """Create a topic that nobody else uses, and return its full name."""
        path = f"projects/bench/topics/bench-{uuid.uuid4().hex}"
        use_server(self.address)
        client = pubsub_v1.PublisherClient()
        try:
            client.create_topic(name=path, timeout=_PATIENCE)
        except (GoogleAPICallError, RetryError) as error:
            raise RefusedError(f"{self.name} cannot create a topic: {error}") from error
        finally:
            client.transport.close()
        return path

    def batch_sizes(self, topic: str) -> set[int]:
        """Return the numbers of messages that requests had; nothing where nobody can tell."""
        if self.server is None:
            return set()
        return {attempt.message_count for attempt in self.server.attempts(topic)}

    def clear(self) -> None:
        """Let the server forget what it got, or its memory would grow."""
        if self.server is not None:
            self.server.clear()


@contextmanager
def running_target(name: str) -> Iterator[Target]:
    """Run a server until the block ends, or use the one that runs at ``host:port``."""
    if name == SERVER:
        with PubSubServer(process=True) as server:
            yield Target(name=name, address=server.address, server=server)
    elif name == EMULATOR:
        try:
            java, jar = find_emulator()
        except EmulatorNotInstalledError as error:
            raise RefusedError(f"no emulator: {error}") from error
        with running_emulator(java, jar) as address:
            yield Target(name=name, address=address)
    else:
        with grpc.insecure_channel(name) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=_PATIENCE)
            except grpc.FutureTimeoutError:
                raise RefusedError(
                    f"--targets {name}: nothing answered within {_PATIENCE:g} s; is it running?"
                ) from None
        yield Target(name=name, address=name)


def both(name: str, values: Pair[Any]) -> dict[str, Any]:
    """Return the entries of one number in a row."""
    return {f"official_{name}": values.official, f"hedged_{name}": values.hedged}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """A server, a process of each client, and how long and how often each of them measures."""

    target: Target
    processes: Mapping[Client, MeasuringProcess]
    seconds: float
    repeats: int

    def measure(self, job: Callable[..., T], *, batch: int, tick: Tick) -> Pair[list[T]]:
        """Run a job with both clients in turns; it sends batches of so many messages."""
        target, topic = self.target, self.target.create_topic()
        job = partial(job, address=target.address, topic=topic, seconds=self.seconds)

        def measure(client: Client) -> T:
            result = self.processes[client].run(partial(job, client=client))
            if (sizes := target.batch_sizes(topic)) - {batch}:
                raise MeasurementError(f"batches of {batch} messages were sent as {sorted(sizes)}")
            target.clear()
            tick()
            return result

        turns = [CLIENTS.map(measure) for _ in range(self.repeats)]
        return Pair(official=[one.official for one in turns], hedged=[one.hedged for one in turns])


def measure_each(job: Callable[..., T], tick: Tick) -> Pair[T]:
    """Run a job with both clients once, each in a fresh process."""

    def measure(client: Client) -> T:
        with MeasuringProcess() as process:
            result = process.run(partial(job, client=client))
        tick()
        return result

    return CLIENTS.map(measure)


def measure_throughput(turns: Turns, *, batch: int, size: int, tick: Tick) -> Row:
    """Measure messages per second, and CPU time per message, at one batch and message size."""
    job = partial(jobs.throughput, batch=batch, size=size)
    measured = turns.measure(job, batch=batch, tick=tick)
    rates = measured.map(lambda all_: [one.per_second for one in all_])
    cpu = measured.map(lambda all_: [1e6 * one.cpu for one in all_])
    return {
        "target": turns.target.name,
        "batch": batch,
        "size": size,
        **both("per_second", rates.map(statistics.median)),
        "speedup": ratios(rates.hedged, rates.official),
        **both("cpu_us", cpu.map(statistics.median)),
        "cpu_saving": ratios(cpu.official, cpu.hedged),
    }


def measure_latency(turns: Turns, *, settings: str, tick: Tick) -> Row:
    """Measure the latency of a single publish with one kind of batch settings."""
    measured = turns.measure(partial(jobs.latency, settings=settings), batch=1, tick=tick)
    row: dict[str, Any] = {"target": turns.target.name, "settings": settings}
    for name in ("p50", "p99"):
        times = Pair(
            official=[1e3 * one[name] for one in measured.official],
            hedged=[1e3 * one[name] for one in measured.hedged],
        )
        row |= both(f"{name}_ms", times.map(statistics.median))
        row[f"{name}_ratio"] = ratios(times.hedged, times.official)
    return row


def measure_held(*, messages: int, batch: int, tick: Tick) -> Row:
    """Measure what messages that are not answered take: threads, and bytes a message."""
    job = partial(jobs.held, messages=messages, batch=batch)
    # Memory that the system counts and memory that Python counts: each would disturb the other.
    plain, traced = (measure_each(partial(job, trace=trace), tick) for trace in (False, True))

    def per_message(measured: Pair[dict[str, int | None]], name: str) -> dict[str, Any]:
        totals = measured.map(lambda one: one[name])
        return both(name, totals.map(lambda all_: None if all_ is None else all_ / messages))

    return {
        "messages": messages,
        "batches": messages // batch,
        **both("threads", plain.map(lambda one: one["threads"])),
        **per_message(traced, "traced_bytes"),
        **per_message(plain, "resident_bytes"),
    }


def measure_endurance(*, batches: int, tick: Tick) -> Row:
    """Measure how memory grows over many batches of 32 KiB of which 5 % stall."""
    how: dict[str, Any] = {"batches": batches, "early": batches // 10, "size": 32 * 1024}
    return {**how, **dataclasses.asdict(measure_each(partial(jobs.endurance, **how), tick))}


def cases(seed: int, *, duration: float) -> dict[str, FaultScript]:
    """Return what the server does in each case, on schedules of so many seconds."""
    start = 0.25 * duration
    length, stall = min(5.0, start), min(10.0, duration / 2)
    one = [Stall(2.0, probability=0.01)]
    two = [Stall(4.0, probability=0.01), Stall(0.3, probability=0.04)]
    outage = [Stall(stall, between=(start, start + length))]
    # 2.7 % are slower than the hedge delay, 0.1 % than 1.6 s.
    pareto = Pareto(minimum=0.005, alpha=1.2)
    all_stall = f"all stall for {stall:g} s, within a window of {length:g} s"
    return {
        "1 % stall for 2 s": FaultScript(latency=LATENCY, faults=one, seed=seed),
        "4 % stall for 0.3 s, 1 % for 4 s": FaultScript(latency=LATENCY, faults=two, seed=seed),
        "Pareto from 5 ms, exponent 1.2": FaultScript(latency=pareto, seed=seed),
        all_stall: FaultScript(latency=LATENCY, faults=outage, seed=seed),
    }


def measure_tail(case: str, script: FaultScript, *, publishes: int, rate: float, tick: Tick) -> Row:
    """Measure both clients in one case; latencies are in seconds, by message."""
    runs = measure_each(partial(jobs.tail, script=script, publishes=publishes, rate=rate), tick)
    delay = TAIL_HEDGING.initial_hedge_delay
    best, requests = best_possible(script, publishes=publishes, rate=rate, hedge_delay=delay)
    lateness = sorted(runs.official.lateness + runs.hedged.lateness)
    extra = runs.hedged.requests - publishes
    allowed = TAIL_HEDGING.refill_ratio * publishes + TAIL_HEDGING.max_tokens
    if extra > allowed:
        raise MeasurementError(f"{extra} extra requests, but the budget allows {allowed:g}")
    return {
        "case": case,
        "publishes": publishes,
        "hedge_delay": delay,
        "official": runs.official.latencies,
        "hedged": runs.hedged.latencies,
        "best": best,
        "lateness": nearest_rank(lateness, PERCENTILES["p99"]),
        "extra_requests": extra,
        "best_extra_requests": requests - publishes,
        "allowed_requests": allowed,
    }


def best_possible(
    script: FaultScript, *, publishes: int, rate: float, hedge_delay: float
) -> tuple[list[float], int]:
    """Replay a schedule on a server's script, with a hedge whenever the hedge timer is due.

    Return the latencies, and the requests, of a publisher without budget or overhead. Raise
    ValueError if the script has other faults than stalls.
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
        # Draws are taken in the order in which requests arrive, as on the server itself.
        match decider.decide(Call(requests, topic="", attempt_number=attempt, elapsed=now)):
            case float(seconds) | Stall(seconds=seconds):
                ends[number] = min(ends[number], now + seconds)
            case fault:
                raise ValueError(f"script must have no other faults than Stall; got {fault!r}")
        heapq.heappush(due, (now + hedge_delay, number, attempt + 1))
    return [end - number / rate for number, end in enumerate(ends)], requests
