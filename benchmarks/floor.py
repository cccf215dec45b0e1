"""What gRPC alone costs: the floor under any publisher, and what this one adds to it.

A loop of bare ``unary_unary(...).future()`` calls sends the same requests as the publisher, with as
many in flight, and takes the same answers. Run it from the project's folder:

    python benchmarks/floor.py [--batches 1,10,100] [--repeats 5] [--seconds 1] [--target server]
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
from dataclasses import dataclass
from typing import Any

import grpc
from google.pubsub_v1 import types

from hedged_pubsub.cli.bench.jobs import Rate, throughput, window
from hedged_pubsub.cli.bench.scenarios import running_target
from hedged_pubsub.cli.clients import Client


@dataclass(frozen=True, kw_only=True, slots=True)
class FloorJob:
    """Send requests that are serialized already, with nothing around them, for ``seconds``."""

    address: str
    topic: str
    batch: int
    size: int
    seconds: float

    def run(self) -> Rate:
        """Measure."""
        messages = [types.PubsubMessage(data=b"x" * self.size)] * self.batch
        request = types.PublishRequest.serialize(
            types.PublishRequest(topic=self.topic, messages=messages)
        )
        with grpc.insecure_channel(self.address) as channel:
            publish = channel.unary_unary(
                "/google.pubsub.v1.Publisher/Publish",
                response_deserializer=types.PublishResponse.pb().FromString,
            )
            in_flight: collections.deque[Any] = collections.deque()
            self._send(publish, request, self.seconds / 4, in_flight)
            cpu, start = time.process_time(), time.perf_counter()
            calls = self._send(publish, request, self.seconds, in_flight)
            return Rate(
                per_second=calls * self.batch / (time.perf_counter() - start),
                cpu=(time.process_time() - cpu) / calls / self.batch,
            )

    def _send(
        self, publish: Any, request: bytes, seconds: float, in_flight: collections.deque[Any]
    ) -> int:
        calls = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            in_flight.append(publish.future(request, 60.0))
            calls += 1
            if len(in_flight) > window(self.batch):
                for _ in range(window(self.batch) // 2):
                    in_flight.popleft().result()
        while in_flight:
            in_flight.popleft().result()
        return calls


def main() -> None:
    """Measure both in turns, and print CPU time a request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="server")
    parser.add_argument("--batches", default="1,10,100")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    with running_target(arguments.target) as target:
        topic = target.create_topic()
        for batch in map(int, arguments.batches.split(",")):
            common: dict[str, Any] = {"address": target.address, "topic": topic, "batch": batch}
            common |= {"size": arguments.size, "seconds": arguments.seconds}
            floor, hedged = [], []
            for _ in range(arguments.repeats):
                floor.append(FloorJob(**common).run())
                hedged.append(throughput(client=Client.HEDGED, **common))
                target.clear()
            of_floor, of_hedged = (
                1e6 * batch * statistics.median(rate.cpu for rate in rates)
                for rates in (floor, hedged)
            )
            print(
                f"batch of {batch}: CPU a request {of_floor:.0f} µs bare, {of_hedged:.0f} µs hedged"
                f" ({of_hedged - of_floor:+.0f} µs)"
            )


if __name__ == "__main__":
    main()
