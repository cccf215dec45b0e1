"""A pipeline that reads each message once, though it may be stored twice.

On Dataflow, ``ReadFromPubSub(id_label=…)`` drops the copies that arrive within ten minutes of each
other. Other runners do not have it: there the pipeline does it, with Beam's own transform, and
remembers ids for as long as copies can be apart.

    python read_once.py --input projects/shop/subscriptions/orders \
        --output projects/shop/topics/paid --streaming --runner FlinkRunner ...

Other options are Beam's.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.transforms.deduplicate import DeduplicatePerKey

from hedged_pubsub.beam import WriteToPubSub

ID_LABEL = "event_id"
APART_SECONDS = 600


def read_once(subscription: str, *, on_dataflow: bool) -> beam.PTransform:
    """Return what reads each message of a subscription once."""
    if on_dataflow:
        return ReadFromPubSub(subscription=subscription, id_label=ID_LABEL, with_attributes=True)
    return _read_and_deduplicate(subscription)


@beam.ptransform_fn  # type: ignore[untyped-decorator]
def _read_and_deduplicate(begin: Any, subscription: str) -> Any:
    messages = begin | ReadFromPubSub(subscription=subscription, with_attributes=True)
    by_id = messages | beam.Map(_with_id)
    once = by_id | DeduplicatePerKey(processing_time_duration=APART_SECONDS)
    return once | beam.Values()


def _with_id(message: PubsubMessage) -> tuple[str, PubsubMessage]:
    return message.attributes[ID_LABEL], message


def _data(message: PubsubMessage) -> bytes:
    data: bytes = message.data
    return data


def build(pipeline: beam.Pipeline, subscription: str, topic: str, *, on_dataflow: bool) -> None:
    """Read from a subscription, and write to a topic."""
    messages = pipeline | read_once(subscription, on_dataflow=on_dataflow)
    messages | beam.Map(_data).with_output_types(bytes) | WriteToPubSub(topic, id_label=ID_LABEL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the pipeline."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, help="projects/<project>/subscriptions/<name>")
    parser.add_argument("--output", required=True, help="projects/<project>/topics/<topic>")
    ours, beams = parser.parse_known_args(arguments)
    options = PipelineOptions(beams)
    runner = options.view_as(StandardOptions).runner or ""
    with beam.Pipeline(options=options) as pipeline:
        build(pipeline, ours.input, ours.output, on_dataflow="Dataflow" in runner)


if __name__ == "__main__":
    main()
