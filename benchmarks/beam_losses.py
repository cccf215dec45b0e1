"""What is stored of a million elements that a pipeline publishes through every kind of fault.

Needs the extra: ``pip install -e '.[beam]'``, then ``python benchmarks/beam_losses.py``. Two in a
hundred requests fail, two stall, and two are stored and not answered in time. Elements have ids of
their own (``id_fn``); those are counted at the server, which forgets after each run: none may be
missing, and none may be there that was not written. Prints how many copies there were.
"""

from __future__ import annotations

import argparse
import collections
import logging
import time

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from hedged_pubsub import HedgingSettings
from hedged_pubsub.beam import WriteToPubSub
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status, StoreThenStall

FAULTS = [
    Status("UNAVAILABLE", probability=0.02),
    Stall(3.0, probability=0.02),
    StoreThenStall(3.0, probability=0.02),
]
RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def number_to_bytes(number: int) -> bytes:
    """Return the data of an element."""
    return b"%d" % number


def main() -> None:
    """Run pipelines, and count."""
    parser = argparse.ArgumentParser(description="What is stored of a million elements.")
    parser.add_argument("--elements", type=int, default=100_000, help="of each run")
    parser.add_argument("--runs", type=int, default=10)
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    elements, copies, start = 0, collections.Counter[int](), time.monotonic()
    script = FaultScript(latency=Fixed(0.005), faults=FAULTS)
    with PubSubServer(script, process=True, project="my-project", set_emulator_host=True) as server:
        topic = server.create_topic("elements")
        for run in range(arguments.runs):
            numbers = range(run * arguments.elements, (run + 1) * arguments.elements)
            with beam.Pipeline(options=PipelineOptions([], runner=RUNNER)) as pipeline:
                data = pipeline | beam.Create(numbers) | beam.Map(number_to_bytes)
                data | WriteToPubSub(
                    topic,
                    id_label="event_id",
                    id_fn=bytes.decode,
                    hedging_settings=HedgingSettings(hedge_delay=0.2),
                )
            ids = collections.Counter(
                int(dict(message.attributes)["event_id"]) for message in server.messages()
            )
            if ids.keys() != set(numbers):
                raise RuntimeError(f"{len(set(numbers) - ids.keys())} elements are lost")
            elements += len(ids)
            copies.update(ids.values())
            print(f"{elements:,} elements, none lost", flush=True)
            server.clear()
    print("each is stored once after deduplication by id")
    print(f"copies: {dict(sorted(copies.items()))}, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
