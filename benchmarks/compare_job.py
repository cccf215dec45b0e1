"""What ``compare.py`` runs in its measuring processes: one source for all sides.

Only the publisher comes from elsewhere: from the checkout whose ``src`` folder is on PYTHONPATH.
Jobs come as lines of JSON on standard input, and their results go back as lines on standard output.
"""

from __future__ import annotations

import collections
import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc
from google.cloud import pubsub_v1
from google.pubsub_v1 import types

OFFICIAL = "official"

# As hedged_pubsub.cli.bench.jobs has it: what a program may well publish before it looks at
# the first result; and enough batches for the server never to wait.
_MESSAGES_IN_FLIGHT = 2_000
_MIN_BATCHES_IN_FLIGHT = 20
_MAX_REQUEST = 10_000_000
# A batch goes out because it is full, never because it has waited.
_PATIENCE = 60.0
_DATA = b"x" * 100


def warm(address: str, topic: str, requests: int) -> None:
    """Send one-message requests with bare gRPC calls: for the server, not for a client."""
    message = types.PubsubMessage(data=_DATA)
    request = types.PublishRequest.serialize(types.PublishRequest(topic=topic, messages=[message]))
    with grpc.insecure_channel(address) as channel:
        publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        in_flight: collections.deque[Any] = collections.deque()
        for _ in range(requests):
            in_flight.append(publish.future(request, _PATIENCE))
            if len(in_flight) > _MIN_BATCHES_IN_FLIGHT:
                in_flight.popleft().result()
        while in_flight:
            in_flight.popleft().result()


class Throughput:
    """Publishes as fast as ``in_flight`` batches, or those that the benchmark has, allow."""

    def __init__(
        self, make: Callable[..., Any], topic: str, *, batch: int, in_flight: int | None
    ) -> None:
        # Both clients send a batch when the message arrives that would make it ``max_messages``,
        # without that message; only of one message do they make a batch at once.
        self._publisher = make(
            pubsub_v1.types.BatchSettings(
                max_messages=1 if batch == 1 else batch + 1,
                max_bytes=_MAX_REQUEST,
                max_latency=_PATIENCE,
            )
        )
        self._topic = topic
        self._batch = batch
        self._limit = in_flight or max(_MIN_BATCHES_IN_FLIGHT, _MESSAGES_IN_FLIGHT // batch)
        self._still_open = 0 if batch == 1 else 1
        # The last future of each batch, which stands for its batch.
        self._last: collections.deque[Future[str]] = collections.deque()

    def run(self, seconds: float) -> dict[str, float]:
        """Measure ``cpu_us``, CPU microseconds a message, and ``per_second``, the rate."""
        cpu, start = time.process_time(), time.perf_counter()
        messages = self._publish_for(seconds) * self._batch
        cpu, elapsed = time.process_time() - cpu, time.perf_counter() - start
        return {"cpu_us": 1e6 * cpu / messages, "per_second": messages / elapsed}

    def close(self) -> None:
        """Send the last batch and close the publisher."""
        self._publisher.stop()
        while self._last:
            self._last.popleft().result(_PATIENCE)
        _close(self._publisher)

    def _publish_for(self, seconds: float) -> int:
        publish, topic, last = self._publisher.publish, self._topic, self._last
        batches = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(self._batch - 1):
                publish(topic, _DATA)
            last.append(publish(topic, _DATA))
            batches += 1
            if len(last) - self._still_open >= self._limit:
                # For half of them: so this thread is woken once in a while, not by every batch.
                for _ in range(max(1, self._limit // 2)):
                    last.popleft().result(_PATIENCE)
        # The last batch is still open here, at the start of what is measured and at its end.
        while len(last) > self._still_open:
            last.popleft().result(_PATIENCE)
        return batches


class OneAtATime:
    """Publishes one message after the other, each when the last one is stored."""

    def __init__(self, make: Callable[..., Any], topic: str) -> None:
        self._publisher = make(pubsub_v1.types.BatchSettings(max_messages=1))
        self._topic = topic

    def run(self, seconds: float) -> dict[str, float]:
        """Measure ``cpu_us``, CPU microseconds a message, and ``latency_us``, the median."""
        clock = time.perf_counter
        latencies = []
        cpu, end = time.process_time(), clock() + seconds
        while (start := clock()) < end:
            self._publisher.publish(self._topic, _DATA).result(_PATIENCE)
            latencies.append(clock() - start)
        cpu = time.process_time() - cpu
        return {
            "cpu_us": 1e6 * cpu / len(latencies),
            "latency_us": 1e6 * statistics.median(latencies),
        }

    def close(self) -> None:
        """Close the publisher."""
        self._publisher.stop()
        _close(self._publisher)


def _close(publisher: Any) -> None:
    # Not in a finally: with a failure this process is about to end.
    getattr(publisher, "close", publisher.transport.close)()


def _find_publisher(checkout: str) -> Callable[..., Any]:
    if checkout == OFFICIAL:
        # Without importing ours, which would set gRPC up for forks.
        official: Callable[..., Any] = pubsub_v1.PublisherClient
        return official
    import hedged_pubsub

    where = Path(hedged_pubsub.__file__ or "")
    if Path(checkout).resolve() not in where.resolve().parents:
        raise ImportError(f"hedged_pubsub must come from {checkout}; it comes from {where}")
    return hedged_pubsub.HedgedPublisher


class _Jobs:
    """What the other process asks for, by name, of one checkout or ``"official"``."""

    def __init__(self, checkout: str) -> None:
        self._make = _find_publisher(checkout)
        self._workload: Throughput | OneAtATime | None = None

    def warm(self, *, topic: str, requests: int) -> None:
        """Warm the server."""
        warm(os.environ["PUBSUB_EMULATOR_HOST"], topic, requests)

    def begin(self, *, seconds: float, **arguments: Any) -> None:
        """Make a publisher for a workload, and warm it for some seconds."""
        workload = Throughput if "batch" in arguments else OneAtATime
        self._workload = workload(self._make, **arguments)
        self._workload.run(seconds)
        gc.collect()

    def run(self, *, seconds: float) -> dict[str, float]:
        """Measure for some seconds."""
        if self._workload is None:
            raise RuntimeError("no workload was begun")
        return self._workload.run(seconds)

    def end(self) -> None:
        """Close the publisher."""
        if self._workload is not None:
            self._workload.close()
            self._workload = None


def main(checkout: str) -> None:
    """Run the jobs that come on standard input until its end."""
    # Whatever else writes to standard output must not end up between the results.
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    jobs: _Jobs | None = None
    for line in sys.stdin:
        try:
            jobs = jobs or _Jobs(checkout)
            name, arguments = json.loads(line)
            reply = {"result": getattr(jobs, name)(**arguments)}
        except Exception:  # noqa: BLE001 - whatever it is, the other process reports it
            reply = {"error": traceback.format_exc().strip()}
        print(json.dumps(reply), file=results, flush=True)
    # Not an ordinary exit: requests under way would hold it up, and the results are delivered.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
