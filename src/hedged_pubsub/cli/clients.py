"""The two clients that are compared, made, warmed up and measured on one schedule."""

from __future__ import annotations

import concurrent.futures
import enum
import gc
import math
import os
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from google.cloud import pubsub_v1

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.cli.measures import Pair
from hedged_pubsub.cli.report import MeasurementError
from hedged_pubsub.testing import FaultScript, LogNormal, PubSubServer

# Publishes message number n and returns the client's future.
Publish = Callable[[int], "Future[str]"]

DEFAULT_HEDGING: Final = HedgingSettings()
# What publishing within a region looks like from the outside: a few milliseconds, some spread.
LATENCY: Final = LogNormal(median=0.005, sigma=0.4)
# A request for each message, so that publishes and requests can be compared one to one.
ONE_MESSAGE: Final = pubsub_v1.types.BatchSettings(max_messages=1)
# Seconds that a busy machine may need beyond the longest stall.
PATIENCE: Final = 30.0
# Successes that fill the default bucket, and an upper bound of a second or two for others.
_MIN_WARM_UP: Final = 200
_MAX_WARM_UP: Final = 1_000
_CLOSE_TIMEOUT: Final = 0.5
# Enough to keep both sides busy, few enough that nothing queues in the client.
_WARM_UP_IN_FLIGHT: Final = 8
_PROGRESS_INTERVAL: Final = 0.2

_BUSY: Final = "is another program using up this machine?"
_FAILED: Final = "a publish failed: {!r}"
_COUNTS: Final = ("hedges_sent", "hedges_won", "hedges_suppressed")


class Client(enum.Enum):
    """A client to measure."""

    OFFICIAL = "PublisherClient"
    HEDGED = "HedgedPublisher"


CLIENTS: Final = Pair(official=Client.OFFICIAL, hedged=Client.HEDGED)


@contextmanager
def publisher(
    client: Client,
    address: str,
    batch_settings: pubsub_v1.types.BatchSettings,
    hedging: HedgingSettings = DEFAULT_HEDGING,
) -> Iterator[pubsub_v1.PublisherClient]:
    """Make a client of a server on loopback; close its channel after the block."""
    use_server(address)
    if client is Client.OFFICIAL:
        official = pubsub_v1.PublisherClient(batch_settings)
        yield official
        # Not in a finally: closing the channel under requests in flight would make the official
        # client's threads fail aloud.
        official.transport.close()
        return
    hedged = HedgedPublisher(batch_settings, hedging_settings=hedging)
    try:
        yield hedged
    finally:  # After a failure, or Ctrl-C, the process is about to end: nobody waits.
        with suppress(concurrent.futures.TimeoutError):
            hedged.close(timeout=_CLOSE_TIMEOUT)


def use_server(address: str) -> None:
    """Let the clients that are made from now on in this process talk to a server."""
    os.environ["PUBSUB_EMULATOR_HOST"] = address
    # gRPC would ask the proxy that http_proxy names even for loopback.
    os.environ["no_grpc_proxy"] = address.rpartition(":")[0]  # noqa: SIM112 - as gRPC reads it


def warm_up_publishes(hedging: HedgingSettings) -> int:
    """Return how many successes each client gets uncounted: a bucketful, within bounds."""
    full = math.ceil(hedging.max_tokens / hedging.refill_ratio)
    return max(_MIN_WARM_UP, min(full, _MAX_WARM_UP))


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientRun:
    """What one client did with the schedule, in seconds by message, and what the server saw."""

    latencies: tuple[float, ...]
    lateness: tuple[float, ...]
    requests: int
    duplicates: int  # messages stored beyond the first copy of each
    hedges_sent: int = 0
    hedges_won: int = 0
    hedges_suppressed: int = 0
    connections: int = 0  # the most that were open at the same time, where a proxy counts


def run_schedule(
    made: pubsub_v1.PublisherClient,
    server: PubSubServer,
    script: FaultScript,
    *,
    hedging: HedgingSettings,
    publishes: int,
    rate: float,
    timeout: float,
    on_progress: Callable[[int], None] = lambda _: None,
    before: Callable[[int], None] = lambda _: None,
) -> ClientRun:
    """Publish a schedule through one client, which is warm when it begins, its bucket full.

    The server, whose records are cleared, follows the script from the first scheduled message on;
    ``before`` is called with the number of each message before it is published, the others are as
    in `run_open_loop`. Raise MeasurementError if a publish fails, never ends or is not stored.
    """
    topic = server.create_topic(f"schedule-{type(made).__name__}")

    def send(number: int) -> Future[str]:
        future: Future[str] = made.publish(topic, b"message %d" % number)
        return future

    def publish(number: int) -> Future[str]:
        before(number)
        return send(number)

    server.set_script(FaultScript(latency=LATENCY, seed=script.seed))
    warm_up(send, warm_up_publishes(hedging), timeout=PATIENCE)
    server.clear()
    # Hedges take draws of the script too: from the first one on, a draw no longer meets the same
    # message with either client. But the hedged one gets every draw that the official one gets.
    server.set_script(script)
    counts_before = _hedges(made)
    # A full collection walks everything that was ever imported and takes some 40 ms, which would be
    # in either client's tail. Frozen objects are not walked.
    gc.collect()
    gc.freeze()
    latencies, lateness = run_open_loop(
        publish, publishes=publishes, rate=rate, timeout=timeout, on_progress=on_progress
    )
    counts = _hedges(made)
    stored = server.messages(topic)
    unique = len({message.data for message in stored})
    if unique != publishes:
        raise MeasurementError(f"{publishes} publishes succeeded, but {unique} messages are stored")
    return ClientRun(
        latencies=tuple(latencies),
        lateness=tuple(lateness),
        requests=len(server.attempts(topic)),
        duplicates=len(stored) - unique,
        **{name: counts[name] - counts_before[name] for name in counts},
    )


def _hedges(made: pubsub_v1.PublisherClient) -> dict[str, int]:
    stats = made.hedging_stats() if isinstance(made, HedgedPublisher) else None
    return {name: getattr(stats, name, 0) for name in _COUNTS}


def warm_up(publish: Publish, count: int, *, timeout: float) -> None:
    """Publish so many messages, a few at a time; raise MeasurementError if one fails or is late."""
    for start in range(0, count, _WARM_UP_IN_FLIGHT):
        numbers = range(start, min(start + _WARM_UP_IN_FLIGHT, count))
        futures = [publish(number) for number in numbers]
        if concurrent.futures.wait(futures, timeout).not_done:
            raise MeasurementError(f"a publish did not end within {timeout:g} s; {_BUSY}")
        for error in filter(None, (future.exception() for future in futures)):
            raise MeasurementError(_FAILED.format(error)) from error


def run_open_loop(
    publish: Publish,
    *,
    publishes: int,
    rate: float,
    timeout: float,
    on_progress: Callable[[int], None],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[list[float], list[float]]:
    """Publish message n at ``n / rate`` seconds, whatever became of those before it.

    Return latencies and lateness by message: seconds from the scheduled send time to the future's
    completion, and to the call of ``publish()``. A closed loop would wait for a stalled request and
    not send the messages that meet the stall; and time lost because a client was late would not
    count. Raise MeasurementError if a publish fails, or none ends for ``timeout`` seconds once all
    is sent. ``on_progress`` is called now and then with the number of messages that ended.
    """
    # A simple queue: put() takes no Python lock, so that measuring costs next to nothing. And no
    # list of futures: the cyclic garbage collector would walk each of them, in pauses that show.
    ended: queue.SimpleQueue[tuple[int, float, BaseException | None]] = queue.SimpleQueue()
    lateness: list[float] = []

    def record(number: int) -> Callable[[Future[str]], None]:
        return lambda future: ended.put((number, clock(), future.exception()))

    start = clock()
    next_progress = start
    for number in range(publishes):
        due = start + number / rate
        if (ahead := due - clock()) > 0:
            sleep(ahead)
        now = clock()
        lateness.append(now - due)
        publish(number).add_done_callback(record(number))
        if now >= next_progress:
            on_progress(ended.qsize())
            next_progress = now + _PROGRESS_INTERVAL

    latencies = [0.0] * publishes
    for count in range(publishes):
        try:
            number, end, error = ended.get(timeout=timeout)
        except queue.Empty:
            raise MeasurementError(
                f"{publishes - count} of {publishes} publishes have not ended {timeout:g} s after"
                f" the last one did; {_BUSY}"
            ) from None
        if error is not None:
            raise MeasurementError(_FAILED.format(error)) from error
        latencies[number] = end - (start + number / rate)
        on_progress(count + 1 + ended.qsize())
    return latencies, lateness
