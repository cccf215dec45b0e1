"""The sink in whole pipelines: what is stored, what fails, and what is put out."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.testing.test_stream import TestStream as Stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows, GlobalWindow, TimestampedValue
from google.api_core.exceptions import NotFound
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions, PublishFlowControl

from hedged_pubsub import HedgingSettings
from hedged_pubsub.beam import DeadLetter, WriteToPubSub
from hedged_pubsub.testing import (
    FaultScript,
    Fixed,
    PubSubServer,
    Stall,
    Status,
    StoredMessage,
    StoreThenStall,
)

from .conftest import Subscription, new_pipeline

FAST = HedgingSettings(hedge_delay=0.1)


def _numbered(number: int) -> bytes:
    return b"%d" % number


def _id(element: bytes) -> str:
    return f"order-{element.decode()}"


def _by_id(server: PubSubServer) -> dict[str, list[StoredMessage]]:
    copies: dict[str, list[StoredMessage]] = collections.defaultdict(list)
    for message in server.messages():
        copies[dict(message.attributes)["event_id"]].append(message)
    return copies


def test_a_batch_pipeline_stores_each_element(
    new_subscription: Callable[[str], Subscription],
) -> None:
    """Without faults each is stored once, with our server and with the emulator."""
    orders = new_subscription("orders")
    with new_pipeline() as pipeline:
        pipeline | beam.Create(range(1_000)) | beam.Map(_numbered) | WriteToPubSub(orders.topic)

    assert sorted(map(int, orders.receive(1_000))) == list(range(1_000))


def test_a_streaming_pipeline_stores_what_arrives(
    new_subscription: Callable[[str], Subscription],
) -> None:
    """From one topic to another, until the pipeline is cancelled."""
    source, sink = new_subscription("source"), new_subscription("sink")
    pipeline = new_pipeline(streaming=True)
    arriving = pipeline | ReadFromPubSub(subscription=source.path)
    arriving | beam.Map(bytes.upper) | WriteToPubSub(sink.topic, hedging_settings=FAST)
    result = pipeline.run()
    try:
        with pubsub_v1.PublisherClient() as publisher:
            for number in range(20):
                publisher.publish(source.topic, b"order %d" % number).result(timeout=10)
        received = sink.receive(20)
    finally:
        result.cancel()

    assert set(received) == {b"ORDER %d" % number for number in range(20)}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_element_is_stored_whatever_fails(server: PubSubServer, workers: int) -> None:
    """Errors, stalls and lost answers lose nothing; after deduplication each is there once."""
    server.create_topic("orders")
    faults = [
        Status("UNAVAILABLE", probability=0.02),
        StoreThenStall(2.0, probability=0.02),
        Stall(2.0, probability=0.02),
    ]
    server.set_script(FaultScript(latency=Fixed(0.002), faults=faults, seed=16))
    mode = "in_memory" if workers == 1 else "multi_threading"
    pipeline = new_pipeline(direct_num_workers=workers, direct_running_mode=mode)
    sink = WriteToPubSub(
        server.topic_path("orders"),
        id_label="event_id",
        id_fn=_id,
        hedging_settings=FAST,
        batch_settings=BatchSettings(max_messages=20),
    )
    pipeline | beam.Create(range(10_000)) | beam.Reshuffle() | beam.Map(_numbered) | sink
    result = pipeline.run()
    result.wait_until_finish()

    copies = _by_id(server)
    assert copies.keys() == {f"order-{number}" for number in range(10_000)}
    assert server.duplicates("event_id")  # or this would show nothing
    counts = {
        one.key.metric.name: one.committed
        for one in result.metrics().query()["counters"]
        if one.key.metric.namespace.endswith("WriteToPubSub")
    }
    assert counts["messages_published"] == 10_000
    assert counts["hedges_sent"] >= counts["hedges_won"] > 0
    assert counts["retries"] > 0
    latency = [
        one.committed
        for one in result.metrics().query()["distributions"]
        if one.key.metric.name == "publish_latency_ms"
    ]
    assert latency[0].count >= 50


def test_assigned_ids_are_the_same_in_all_copies(server: PubSubServer, topic: str) -> None:
    """Without ``id_fn`` each element gets an id of its own; a hedge stores it again."""
    faults = [StoreThenStall(2.0, attempts=[0], calls=[5])]
    server.set_script(FaultScript(latency=Fixed(0.002), faults=faults))
    settings = HedgingSettings(hedge_delay=0.1, initial_tokens=5)
    with new_pipeline() as pipeline:
        numbers = pipeline | beam.Create(range(1_000)) | beam.Map(_numbered)
        numbers | WriteToPubSub(topic, id_label="event_id", hedging_settings=settings)

    copies = _by_id(server)
    assert len(copies) == 1_000
    assert {len({one.data for one in of_one}) for of_one in copies.values()} == {1}
    assert {len(of_one) for of_one in copies.values()} == {1, 2}


def test_what_fails_for_good_fails_the_pipeline(server: PubSubServer) -> None:
    """A topic that does not exist is no silence: the error comes out of the pipeline."""
    with pytest.raises(Exception, match="404") as raised:
        with new_pipeline() as pipeline:
            pipeline | beam.Create([b"order"]) | WriteToPubSub("projects/my-project/topics/none")
    assert NotFound.__name__ in repr(raised.value) + str(raised.value)


MANY = {f"key {number}": "" for number in range(101)}
REFUSED = [
    (PubsubMessage(b"", {"": "x"}), "an attribute's name must have 1 to 256 bytes"),
    (PubsubMessage(b"x", MANY), "a message has 101 attributes; at most 100"),
    (PubsubMessage(b"x", {"k": "v" * 1025}), "the attribute 'k' has 1025 bytes; at most 1024"),
    (PubsubMessage(b"x", {"k": 5}), "an attribute must be text; got 'k': 5"),
    (PubsubMessage(b"x" * 10_000_001, {}), "data has 10000001 bytes; at most 10000000"),
    (PubsubMessage(b"x" * 9_999_990, {"k": "v"}), "produce too large a publish request"),
    (PubsubMessage(b"x", {}, ordering_key="k"), "hedging excludes ordering"),
]


def test_dead_letters(server: PubSubServer, topic: str) -> None:
    """What can never be published comes out with its error, and holds up nothing else."""
    good = PubsubMessage(b"good", {"kind": "good"})
    letters: Any
    with new_pipeline() as pipeline:
        elements = [good, *(element for element, _ in REFUSED), good]
        sink = WriteToPubSub(topic, with_attributes=True, dead_letters=True)
        letters = pipeline | beam.Create(elements) | beam.WindowInto(FixedWindows(10)) | sink
        errors = letters | beam.Map(lambda letter: (letter.topic, letter.error))
        expected = [text for _, text in REFUSED]

        def check(found: list[tuple[str, str]]) -> None:
            assert {name for name, _ in found} == {topic}
            missing = [text for text in expected if not any(text in error for _, error in found)]
            assert (len(found), missing) == (len(expected), [])

        assert_that(errors, check)

    assert [message.data for message in server.messages()] == [b"good"] * 2


def test_dead_letters_of_a_stream_are_in_the_global_window(
    server: PubSubServer, topic: str
) -> None:
    """Each has the timestamp of its element, whatever windows the elements were in."""

    def in_window(
        letter: DeadLetter,
        timestamp: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
    ) -> tuple[bytes, float, bool]:
        return letter.element, float(timestamp), window == GlobalWindow()

    stream = Stream()
    stream.advance_watermark_to(0).add_elements([TimestampedValue(b"good", 3)])
    stream.add_elements([TimestampedValue(b"", 7)]).advance_watermark_to_infinity()
    with new_pipeline(streaming=True) as pipeline:
        elements = pipeline | stream | beam.WindowInto(FixedWindows(5))
        sink = WriteToPubSub(topic, dead_letters=True)
        assert_that(elements | sink | beam.Map(in_window), equal_to([(b"", 7.0, True)]))

    assert [message.data for message in server.messages()] == [b"good"]


def test_the_messages_of_a_refused_batch_are_sent_singly(server: PubSubServer, topic: str) -> None:
    """After INVALID_ARGUMENT only the message that it was about is a dead letter."""
    # The batch, and then one of its three messages.
    server.set_script(FaultScript(faults=[Status("INVALID_ARGUMENT", calls=[1, 3])]))
    with new_pipeline() as pipeline:
        elements = pipeline | beam.Create([b"a", b"b", b"c"], reshuffle=False)
        letters = elements | WriteToPubSub(topic, dead_letters=True)
        errors = letters | beam.Map(lambda letter: letter.error.partition(":")[0])
        assert_that(errors, equal_to(["InvalidArgument"]))

    assert len({message.data for message in server.messages()}) == 2
    assert [attempt.message_count for attempt in server.attempts()] == [3, 1, 1, 1]


def test_without_dead_letters_a_refused_element_fails_the_pipeline(
    server: PubSubServer, topic: str
) -> None:
    """An empty message raises what is wrong with it."""
    with pytest.raises(Exception, match="a message must have data or attributes"):
        with new_pipeline() as pipeline:
            pipeline | beam.Create([b""]) | WriteToPubSub(topic)


def test_topic_id_and_attributes_of_each_element(server: PubSubServer) -> None:
    """Topics come from the element; any attribute is published, whatever its name."""
    for name in ("books", "toys"):
        server.create_topic(name)
    elements = [
        PubsubMessage(b"1", {"shop": "books", "timeout": "none", "topic": "x"}),
        PubsubMessage(b"2", {"shop": "toys", "event_id": "given"}),
        PubsubMessage(b"3", {"shop": "no shop"}),
    ]
    sink = WriteToPubSub(
        lambda one: f"projects/my-project/topics/{one.attributes['shop']}",
        True,
        "event_id",
        "at",
        id_fn=lambda one: f"id-{one.data.decode()}",
        dead_letters=True,
    )
    before = time.time()
    with new_pipeline() as pipeline:
        letters = pipeline | beam.Create(elements) | sink
        assert_that(letters | beam.Map(lambda one: one.topic), equal_to([None]))

    stored = {
        message.topic.rpartition("/")[2]: (message.data, dict(message.attributes))
        for message in server.messages()
    }
    for _, attributes in stored.values():
        assert before * 1000 - 1 <= float(attributes.pop("at")) <= time.time() * 1000
    assert stored == {
        "books": (
            b"1",
            {"shop": "books", "timeout": "none", "topic": "x", "event_id": "id-1"},
        ),
        "toys": (b"2", {"shop": "toys", "event_id": "given"}),
    }


def test_a_topic_that_does_not_answer_holds_back_the_pipeline(
    server: PubSubServer, topic: str
) -> None:
    """Flow control bounds what is under way, and so what the sink keeps."""
    server.set_script(FaultScript(faults=[Stall(1.0, between=(0, 1))]))
    sink = WriteToPubSub(
        topic,
        hedging_settings=None,
        batch_settings=BatchSettings(max_messages=10),
        publisher_options=PublisherOptions(
            flow_control=PublishFlowControl(
                message_limit=100,
                limit_exceeded_behavior=pubsub_v1.types.LimitExceededBehavior.BLOCK,
            )
        ),
    )
    with new_pipeline() as pipeline:
        pipeline | beam.Create(range(5_000)) | beam.Map(_numbered) | sink

    attempts = server.attempts()
    first_answer = min(one.ended for one in attempts if one.ended is not None)
    assert sum(one.message_count for one in attempts if one.arrival < first_answer) <= 100
    assert len(server.messages()) == 5_000
