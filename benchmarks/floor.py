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
from typing import Any

import grpc
from google.pubsub_v1 import types

from hedged_pubsub.cli.bench.jobs import Rate, throughput, window
from hedged_pubsub.cli.bench.scenarios import running_target
from hedged_pubsub.cli.clients import Client


def bare(*, address: str, topic: str, batch: int, size: int, seconds: float) -> Rate:
    """Send requests that are serialized already, with nothing around them, for ``seconds``."""
    messages = [types.PubsubMessage(data=b"x" * size)] * batch
    request = types.PublishRequest.serialize(types.PublishRequest(topic=topic, messages=messages))
    with grpc.insecure_channel(address) as channel:
        publish = channel.unary_unary(
            "/google.pubsub.v1.Publisher/Publish",
            response_deserializer=types.PublishResponse.pb().FromString,
        )
        in_flight: collections.deque[Any] = collections.deque()

        def send(seconds: float) -> int:
            calls = 0
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                in_flight.append(publish.future(request, 60.0))
                calls += 1
                if len(in_flight) > window(batch):
                    for _ in range(window(batch) // 2):
                        in_flight.popleft().result()
            while in_flight:
                in_flight.popleft().result()
            return calls

        send(seconds / 4)
        cpu, start = time.process_time(), time.perf_counter()
        calls = send(seconds)
        return Rate(
            per_second=calls * batch / (time.perf_counter() - start),
            cpu=(time.process_time() - cpu) / calls / batch,
        )


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
                floor.append(bare(**common))
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
