"""Beam's own Pub/Sub sink and ours, side by side: how fast elements are stored.

Needs the extra: ``pip install -e '.[beam]'``, then ``python benchmarks/beam_sinks.py``. Each sink
writes the same elements to a test server in a process of its own, in turns, with one, two and four
workers of Beam's local portable runner. The time is the server's, from the first request to the
last answer, so that the start of a pipeline and of its workers is not in it. What is reported are
ratios: the median of the rounds, and their range.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.io import WriteToPubSub as OfficialSink
from apache_beam.options.pipeline_options import PipelineOptions

from hedged_pubsub.beam import WriteToPubSub
from hedged_pubsub.testing import Fault, FaultScript, Fixed, PubSubServer, Stall

SINKS: dict[str, Callable[[str], Any]] = {"Beam's": OfficialSink, "ours": WriteToPubSub}
PAYLOAD = b"x" * 100
LATENCY = 0.005
STALLS: dict[str, list[Fault]] = {
    "no faults": [],
    "5 % stalls of 3 s": [Stall(3.0, probability=0.05)],
}


def payload(number: int) -> bytes:
    """Return the data of an element."""
    return b"%d " % number + PAYLOAD


def seconds(
    make_sink: Callable[[str], Any], elements: int, workers: int, faults: list[Fault], seed: int
) -> float:
    """Write elements to a new topic, and return how long the server saw it take."""
    script = FaultScript(latency=Fixed(LATENCY), faults=faults, seed=seed)
    with PubSubServer(script, process=True, project="my-project", set_emulator_host=True) as server:
        topic = server.create_topic("elements")
        options = PipelineOptions(
            runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner",
            direct_num_workers=workers,
            direct_running_mode="in_memory" if workers == 1 else "multi_processing",
        )
        with beam.Pipeline(options=options) as pipeline:
            numbers = pipeline | beam.Create(range(elements)) | beam.Reshuffle()
            numbers | beam.Map(payload) | make_sink(topic)
        stored = {message.data for message in server.messages()}
        answered = [one for one in server.attempts() if one.outcome == "answered"]
    if len(stored) != elements:
        raise RuntimeError(f"{elements - len(stored)} of {elements} elements are lost")
    return max(one.ended or 0.0 for one in answered) - min(one.arrival for one in answered)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Beam's sink and ours, side by side.")
    parser.add_argument("--elements", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    print("| faults | workers | Beam's, elements/s | ours, elements/s | ratio |")
    print("|---|---|---|---|---|", flush=True)
    for name, faults in STALLS.items():
        for workers in arguments.workers:
            times: dict[str, list[float]] = {sink: [] for sink in SINKS}
            for seed in range(arguments.rounds):
                for sink, make_sink in SINKS.items():
                    took = seconds(make_sink, arguments.elements, workers, faults, seed)
                    times[sink].append(took)
            ratios = [theirs / ours for theirs, ours in zip(*times.values(), strict=True)]
            rates = [arguments.elements / statistics.median(times[sink]) for sink in SINKS]
            print(
                f"| {name} | {workers} | {rates[0]:,.0f} | {rates[1]:,.0f} "
                f"| {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
