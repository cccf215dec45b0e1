"""Measurements of one client, each a function, and the process of its own that it runs in.

What one client leaves in memory must not be in the other's numbers. A job, which is a function
with its arguments, is sent to the process by pickle, and its result back.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import re
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

from google.cloud import pubsub_v1

from hedged_pubsub import HedgingSettings
from hedged_pubsub.cli.clients import ONE_MESSAGE, Client, ClientRun, publisher, run_schedule
from hedged_pubsub.cli.measures import PERCENTILES, nearest_rank
from hedged_pubsub.cli.report import MeasurementError
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall
from hedged_pubsub.testing.child import Child

Result = TypeVar("Result")

# Seconds for one job. The longest, the official client's tails, takes a tenth of it.
_JOB_PATIENCE: Final = 300.0
# Seconds. A batch goes out because it is full, never because it has waited; and what a lost answer
# may take.
_PATIENCE: Final = 60.0
# What a program may well publish before it waits for the first result; and enough batches for the
# server never to wait.
_MESSAGES_IN_FLIGHT: Final = 2_000
_MIN_BATCHES_IN_FLIGHT: Final = 20
_WARM_UP_SHARE: Final = 0.25
_MAX_REQUEST: Final = 10_000_000
# What a message takes in a request beside its data, generously.
_OVERHEAD: Final = 100
_DATA: Final = b"x" * 100

# The hedge delay is a little above the slowest healthy answer; the budget is the default one.
TAIL_HEDGING: Final = HedgingSettings(hedge_delay=0.1)

# The batch settings with which latency is measured, by name. With the default ones, a lone message
# waits for max_latency, 10 ms.
BATCH_SETTINGS: Final = {
    "one message a batch": ONE_MESSAGE,
    "default": pubsub_v1.types.BatchSettings(),
}


class MeasuringProcess(contextlib.AbstractContextManager["MeasuringProcess"]):
    """Runs jobs in a process of its own, which ends with the ``with`` block."""

    def __init__(self) -> None:
        self._child = Child(object, timeout=_JOB_PATIENCE, quiet=False)

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        """End the process: at once if something went wrong, which includes Ctrl-C."""
        self._child.end(kill=exc_type is not None)

    def run(self, job: Callable[[], Result]) -> Result:
        """Run a job and return its result; raise MeasurementError if it failed or did not end."""
        try:
            return cast("Result", self._child.call(_run, job))
        except RuntimeError as error:
            raise MeasurementError(
                f"the process of {job} has died, or took more than {_JOB_PATIENCE:g} s: {error}"
            ) from error


def _run(_: object, job: Callable[[], Result]) -> Result:
    gc.collect()
    try:
        return job()
    except Exception:  # noqa: BLE001 - whatever it is, the other process reports it
        failure = traceback.format_exc().strip()
    # Not chained: the original error might not survive the way to the other process.
    raise MeasurementError(f"{job} failed: {failure}")


def batch_settings(batch: int) -> pubsub_v1.types.BatchSettings:
    """Return the settings with which both clients send batches of exactly that many messages."""
    # Both send a batch when the message arrives that would make it `max_messages`, without that
    # message; only of one message do they make a batch at once.
    return pubsub_v1.types.BatchSettings(
        max_messages=1 if batch == 1 else batch + 1, max_bytes=_MAX_REQUEST, max_latency=_PATIENCE
    )


def window(batch: int) -> int:
    """Return how many batches of that many messages are in flight at most."""
    return max(_MIN_BATCHES_IN_FLIGHT, _MESSAGES_IN_FLIGHT // batch)


def fits(batch: int, size: int) -> bool:
    """Return whether the service takes a batch of messages of that many bytes in one request."""
    return batch * (size + _OVERHEAD) <= _MAX_REQUEST


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """Messages per second, and CPU seconds per message of the whole process."""

    per_second: float
    cpu: float


def throughput(
    *, client: Client, address: str, topic: str, batch: int, size: int, seconds: float
) -> Rate:
    """Publish for ``seconds`` as fast as a bounded number of messages in flight allows."""
    with publisher(client, address, batch_settings(batch)) as made:
        in_flight: collections.deque[Future[str]] = collections.deque()
        publish = partial(made.publish, topic, b"x" * size)

        def publish_for(seconds: float) -> int:
            """Publish whole batches; keep the last future of each, which stands for it."""
            batches, end = 0, time.perf_counter() + seconds
            while time.perf_counter() < end:
                for _ in range(batch - 1):
                    publish()
                in_flight.append(publish())
                batches += 1
                if len(in_flight) > window(batch):
                    # For half of them: this thread is woken now and then, not by every batch.
                    wait_for(window(batch) // 2)
            return batches

        def wait_for(count: int) -> None:
            for _ in range(count):
                in_flight.popleft().result(_PATIENCE)

        publish_for(seconds * _WARM_UP_SHARE)
        wait_for(len(in_flight) - 1)  # the last batch is still open
        cpu, start = time.process_time(), time.perf_counter()
        messages = batch * publish_for(seconds)
        made.stop()
        wait_for(len(in_flight))
        return Rate(
            per_second=messages / (time.perf_counter() - start),
            cpu=(time.process_time() - cpu) / messages,
        )


def latency(
    *, client: Client, address: str, topic: str, settings: str, seconds: float
) -> dict[str, float]:
    """Publish one message when the last is stored, for ``seconds``; return percentiles."""
    clock = time.perf_counter
    with publisher(client, address, BATCH_SETTINGS[settings]) as made:
        for _ in range(20):
            made.publish(topic, _DATA).result(_PATIENCE)
        latencies = []
        end = clock() + seconds
        while (start := clock()) < end:
            made.publish(topic, _DATA).result(_PATIENCE)
            latencies.append(clock() - start)
        made.stop()
    latencies.sort()
    return {name: nearest_rank(latencies, PERCENTILES[name]) for name in ("p50", "p99")}


# --- Threads and memory: with everything stalled, and after many batches.

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


def held(*, client: Client, messages: int, batch: int, trace: bool) -> dict[str, int | None]:
    """Return the threads and the memory that messages of 100 bytes take while nothing is answered.

    None where nothing was counted. ``trace`` counts Python's allocations, which slows everything
    down. The process is of no use afterwards: its requests are still open.
    """
    script = FaultScript(faults=[Stall(_FOREVER, topic="stalled")])
    server = _left_open.enter_context(PubSubServer(script, process=True))
    made = _left_open.enter_context(publisher(client, server.address, batch_settings(batch)))
    warm = server.create_topic("warm")
    # One more, so that all batches before it are complete.
    futures = [made.publish(warm, _DATA) for _ in range(50 * batch + 1)]
    futures[-2].result(_PATIENCE)
    topic = server.create_topic("stalled")
    _settle()
    if trace:
        tracemalloc.start()
    idle_threads, idle_bytes = _usage()
    # A program that publishes keeps the futures, or the client does.
    futures = [made.publish(topic, _DATA) for _ in range(messages)]
    peak = _settle()
    traced = tracemalloc.get_traced_memory()[0] if trace else None
    tracemalloc.stop()
    return {
        "threads": _usage()[0] - idle_threads,
        "resident_bytes": None if peak is None or idle_bytes is None else peak - idle_bytes,
        "traced_bytes": traced,
    }


def _settle() -> int | None:
    """Wait until this process has little left to do; return the most memory that was resident."""
    peak = 0
    give_up = time.monotonic() + _MAX_SETTLE_SECONDS
    while time.monotonic() < give_up:
        cpu = time.process_time()
        time.sleep(_SETTLED_SECONDS)
        peak = max(peak, _usage()[1] or 0)
        if time.process_time() - cpu < _SETTLED_SHARE * _SETTLED_SECONDS:
            break
    return peak or None


def endurance(*, client: Client, batches: int, early: int, size: int) -> dict[str, int | None]:
    """Return the resident memory after ``early`` of many batches, and after all: ``late``."""
    script = FaultScript(faults=[Stall(0.2, probability=0.05)])
    with (
        PubSubServer(script, process=True) as server,
        publisher(client, server.address, batch_settings(1), TAIL_HEDGING) as made,
    ):
        topic = server.create_topic("endurance")

        def publish(batches: int) -> int | None:
            for start in range(0, batches, _ENDURANCE_WINDOW):
                count = min(_ENDURANCE_WINDOW, batches - start)
                for future in [made.publish(topic, b"x" * size) for _ in range(count)]:
                    future.result(_PATIENCE)
                server.clear()  # or its memory, on the same machine, would grow instead
            return _usage()[1]

        grown = {"early": publish(early), "late": publish(batches - early)}
        made.stop()
    return grown


def _usage() -> tuple[int, int | None]:
    """Return this process's threads, gRPC's too if the system tells, and its resident bytes."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:  # another system than Linux
        return threading.active_count(), None
    found = dict(re.findall(r"^(Threads|VmRSS):\s+(\d+)", status, re.MULTILINE))
    return int(found["Threads"]), 1024 * int(found["VmRSS"])


def tail(
    *,
    client: Client,
    script: FaultScript,
    publishes: int,
    rate: float,
    hedging: HedgingSettings = TAIL_HEDGING,
) -> ClientRun:
    """Publish a schedule through one client, to a server of its own that follows a script."""
    with (
        PubSubServer(process=True) as server,
        publisher(client, server.address, ONE_MESSAGE, hedging) as made,
    ):
        run = run_schedule(
            made, server, script, hedging=hedging, publishes=publishes, rate=rate, timeout=_PATIENCE
        )
        made.stop()
        return run
