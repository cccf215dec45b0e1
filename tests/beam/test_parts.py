"""The parts of the sink: its arguments, what it shows, its messages, its publishers."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.transforms.display import DisplayData
from apache_beam.typehints import TypeCheckError
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from google.api_core.retry import Retry
from google.cloud.pubsub_v1 import types

import hedged_pubsub.beam
from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.beam import DeadLetter, WriteToPubSub
from hedged_pubsub.beam.messages import MessageMaker
from hedged_pubsub.beam.publishers import FLOW_CONTROL, ProcessPublisher, changed
from hedged_pubsub.testing import PubSubServer
from tests.unit.test_documentation import check_public_names

from .conftest import new_pipeline

TOPIC = "projects/my-project/topics/orders"


def test_public_names_are_sorted_documented_and_there() -> None:
    """As those of the other parts of the package; pickles name them where users find them."""
    check_public_names(hedged_pubsub.beam)
    assert DeadLetter.__module__ == WriteToPubSub.__module__ == "hedged_pubsub.beam"
    letter = DeadLetter(b"order", TOPIC, "why")
    assert pickle.loads(pickle.dumps(letter)) == letter  # noqa: S301 - our own


ERROR = types.PublishFlowControl(limit_exceeded_behavior=types.LimitExceededBehavior.ERROR)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"topic": "orders"}, ValueError, "topic='orders' must have the form 'projects/"),
        ({"topic": 5}, TypeError, "topic must be the full name of a topic; got 5"),
        ({"id_fn": str}, ValueError, "id_fn needs id_label"),
        (
            {"publisher_options": types.PublisherOptions(enable_message_ordering=True)},
            ValueError,
            "hedging excludes ordering.*publish_with_ordering_key=True",
        ),
        (
            {"publisher_options": types.PublisherOptions(flow_control=ERROR)},
            ValueError,
            "limit_exceeded_behavior=ERROR would fail bundles under load: use BLOCK",
        ),
        ({"hedging_settings": 1.0}, TypeError, "hedging_settings must be a HedgingSettings"),
    ],
)
def test_arguments_that_cannot_work(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    """They are refused where the pipeline is written, with the remedy."""
    with pytest.raises(error, match=text):
        WriteToPubSub(**{"topic": TOPIC, **arguments})


def test_elements_of_another_type_are_refused_as_the_pipeline_is_built() -> None:
    """Type hints, as those of Beam's own sink."""
    with pytest.raises(TypeCheckError, match="Publish"):
        new_pipeline() | beam.Create([1, 2, 3]) | WriteToPubSub(TOPIC)
    sink = WriteToPubSub(TOPIC, with_attributes=True, id_label="event_id")
    with pytest.raises(TypeCheckError, match="AssignIds"):
        new_pipeline() | beam.Create([b"x"]) | sink


def test_display_data() -> None:
    """A runner shows where the sink writes to, and how it hedges."""
    sink = WriteToPubSub(TOPIC, id_label="event_id", hedging_settings=HedgingSettings(0.5))
    shown = {item.key: item.value for item in DisplayData.create_from(sink).items}

    assert shown["topic"] == TOPIC
    assert shown["id_label"] == "event_id"
    assert "hedge_delay=0.5" in shown["hedging_settings"]
    assert "timestamp_attribute" not in shown


def test_a_message_of_an_element() -> None:
    """Text is encoded; a timestamp is given in milliseconds, as a reader takes it."""
    maker = MessageMaker(
        TOPIC, with_attributes=False, id_label="id", id_of=None, timestamp_attribute="at"
    )
    message = maker.make("ä", Timestamp(12.5), "7")

    assert (message.data, message.attributes) == ("ä".encode(), {"id": "7", "at": "12500"})
    assert float(maker.make("ä", MIN_TIMESTAMP, "7").attributes["at"]) > 1e12  # now


def test_options_go_to_the_workers() -> None:
    """Those that are set, retries too; flow control is bounded if they say nothing of it."""
    retry = Retry(deadline=30.0)
    options = changed(types.PublisherOptions(retry=retry, timeout=20.0))

    assert options == {"retry": retry, "timeout": 20.0, "flow_control": FLOW_CONTROL}
    assert pickle.loads(pickle.dumps(changed(types.PublisherOptions())))  # noqa: S301 - our own
    limits = types.PublishFlowControl(
        message_limit=5, limit_exceeded_behavior=types.LimitExceededBehavior.BLOCK
    )
    assert changed(types.PublisherOptions(flow_control=limits))["flow_control"] == limits


def test_one_publisher_for_all_threads_closed_by_the_last(server: PubSubServer) -> None:
    """It is made once, stays open while anyone uses it, and is made again after that."""
    made: list[HedgedPublisher] = []

    def make() -> HedgedPublisher:
        made.append(HedgedPublisher())
        return made[-1]

    shared = ProcessPublisher(make)
    threads = [threading.Thread(target=shared.open) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    topic = server.create_topic("orders")
    for _ in range(7):
        shared.close()
    made[0].publish(topic, b"order").result(timeout=10)
    shared.close()

    with pytest.raises(RuntimeError, match="Cannot publish"):
        made[0].publish(topic, b"order")
    assert len(made) == 1
    assert shared.open() is made[1]
    shared.close()


def _official(*_: object, **__: object) -> Any:
    return object()


def test_a_factory_makes_the_publisher(server: PubSubServer) -> None:
    """It is called as ``HedgedPublisher`` is, and must return one."""
    topic = server.create_topic("orders")
    factory = functools.partial(HedgedPublisher, exit_timeout=1.0)
    with new_pipeline() as pipeline:
        elements = pipeline | beam.Create([PubsubMessage(b"order", {})])
        elements | WriteToPubSub(topic, with_attributes=True, publisher_factory=factory)
    assert [message.data for message in server.messages()] == [b"order"]

    with pytest.raises(Exception, match="publisher_factory must return a HedgedPublisher"):
        with new_pipeline() as pipeline:
            pipeline | beam.Create([b"order"]) | WriteToPubSub(topic, publisher_factory=_official)
