"""A pipeline that publishes the lines of files, and keeps what Pub/Sub refuses.

Each line is a JSON object with the id of an order. The id goes into an attribute, so that a reader
can drop the copies that hedging, a retried bundle, or another run of the same pipeline makes. Lines
that can never be published, and lines that are no such object, end up in files with their error
instead of failing the pipeline again and again.

    python file_to_topic.py --input 'orders*.jsonl' --topic projects/shop/topics/orders \
        --dead-letters refused --runner DataflowRunner ...

Other options are Beam's.
"""

import argparse
import json
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions

from hedged_pubsub import HedgingSettings
from hedged_pubsub.beam import DeadLetter, WriteToPubSub


def to_message(line: str) -> Iterator[PubsubMessage | beam.pvalue.TaggedOutput]:
    """Yield the message of a line, or the line with what is wrong with it."""
    try:
        order_id = json.loads(line)["id"]
        yield PubsubMessage(line.encode(), {"order_id": str(order_id)})
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
        yield beam.pvalue.TaggedOutput("bad", DeadLetter(line, None, problem))


def to_line(letter: DeadLetter) -> str:
    """Return a dead letter as a line of JSON."""
    element = letter.element
    text = element if isinstance(element, str) else element.data.decode(errors="replace")
    return json.dumps({"error": letter.error, "line": text})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the pipeline."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True, help="files, as a pattern")
    parser.add_argument("--topic", required=True, help="projects/<project>/topics/<topic>")
    parser.add_argument("--dead-letters", required=True, help="what the names of files begin with")
    ours, beams = parser.parse_known_args(arguments)
    with beam.Pipeline(options=PipelineOptions(beams)) as pipeline:
        lines = pipeline | beam.io.ReadFromText(ours.input)
        make = beam.FlatMap(to_message).with_output_types(PubsubMessage)
        messages = lines | make.with_outputs("bad", main="good")
        refused = messages.good | WriteToPubSub(
            ours.topic,
            with_attributes=True,
            id_label="order_id",
            id_fn=lambda message: message.attributes["order_id"],
            dead_letters=True,
            # A job has no time to earn its first tokens.
            hedging_settings=HedgingSettings(hedge_delay=0.5, initial_tokens=5),
        )
        dead = (messages.bad, refused) | beam.Flatten()
        dead | beam.Map(to_line) | beam.io.WriteToText(ours.dead_letters, ".jsonl")


if __name__ == "__main__":
    main()
