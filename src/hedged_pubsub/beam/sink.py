"""``WriteToPubSub``: the sink, as a pipeline has it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.transforms.core import Windowing
from apache_beam.transforms.display import DisplayDataItem
from apache_beam.transforms.window import GlobalWindows
from google.cloud.pubsub_v1 import types

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub._core.message_ids import next_id
from hedged_pubsub._google.options import settings_in_force
from hedged_pubsub.beam.messages import DeadLetter, IdOf, MessageMaker, TopicOf, check_topic
from hedged_pubsub.beam.publishers import SharedPublisher, changed, make_publisher
from hedged_pubsub.beam.write_fn import PublishFn


class WriteToPubSub(beam.PTransform):  # type: ignore[misc]
    """Write a collection to Pub/Sub, in batch and in streaming pipelines, with publish hedging.

    It takes the place of ``apache_beam.io.WriteToPubSub``. The threads of a worker process share
    one ``HedgedPublisher``. A bundle ends when all its messages are stored, or fails with the
    error, so that the runner runs it again: every element is stored at least once, and can be
    stored more than once. ``id_label`` names an attribute by which a reader drops the copies.

    The result is a collection of ``DeadLetter``, in the global window, with the timestamps of their
    elements; an empty one without ``dead_letters=True``.

    Args:
        topic: The full name of the topic, ``"projects/<project>/topics/<topic>"``, or a callable
            that returns it for an element.
        with_attributes: Whether elements are ``PubsubMessage``; else they are ``bytes``, or text,
            which is encoded as UTF-8.
        id_label: Name of an attribute that every message gets, unless it has it: an id, for
            ``ReadFromPubSub(id_label=…)`` or another subscriber that drops duplicates.
        timestamp_attribute: Name of an attribute that every message gets: the element's timestamp,
            in milliseconds since the epoch, for ``ReadFromPubSub(timestamp_attribute=…)``. Where
            elements have no timestamp, as in most batch pipelines, the time of publishing.
        id_fn: What returns the id of an element, with ``id_label``. An element that is published
            again, by another run of the pipeline too, then has the same id. Without it ids are made
            before a ``Reshuffle``, so that a bundle that runs again keeps them where the runner
            keeps the result of a shuffle; another run of the pipeline makes others.
        dead_letters: Whether an element that is refused for good, such as one that is too large,
            is put out with its error. By default it fails its bundle, and the pipeline in the end.
        hedging_settings: As for ``HedgedPublisher``; ``None`` turns hedging off.
        batch_settings: As for ``HedgedPublisher``.
        publisher_options: As for ``HedgedPublisher``. Without flow control of theirs, a worker
            process has at most 10,000 messages and 64 MiB under way, and waits then.
        publisher_factory: What makes the publisher of a worker process; called as
            ``HedgedPublisher`` is, with ``batch_settings``, ``publisher_options`` and
            ``hedging_settings=``. For credentials, for example:
            ``functools.partial(HedgedPublisher, credentials=…)``.

    Raises:
        TypeError: If ``topic`` is neither text nor callable, or ``hedging_settings`` of another
            type.
        ValueError: If ``topic`` is not of that form, if ``id_fn`` is given without ``id_label``, or
            if the options enable ordering, or flow control that raises errors.
    """

    def __init__(
        self,
        topic: str | TopicOf,
        with_attributes: bool = False,
        id_label: str | None = None,
        timestamp_attribute: str | None = None,
        *,
        id_fn: IdOf | None = None,
        dead_letters: bool = False,
        hedging_settings: HedgingSettings | None = HedgingSettings(),  # noqa: B008 - it is frozen
        batch_settings: types.BatchSettings | Sequence[Any] = (),
        publisher_options: types.PublisherOptions | Sequence[Any] = (),
        publisher_factory: Callable[..., HedgedPublisher] = HedgedPublisher,
    ) -> None:
        super().__init__()
        if not callable(topic):
            check_topic(topic)
        if id_fn is not None and id_label is None:
            raise ValueError("id_fn needs id_label, the name of the attribute for its ids")
        settings_in_force(hedging_settings, batch_settings, {})  # or TypeError
        self._topic = topic
        self._with_attributes = with_attributes
        self._id_label = id_label
        self._timestamp_attribute = timestamp_attribute
        self._id_fn = id_fn
        self._dead_letters = dead_letters
        self._hedging_settings = hedging_settings
        options = types.PublisherOptions(*publisher_options)
        self._make_publisher = functools.partial(
            make_publisher, publisher_factory, batch_settings, changed(options), hedging_settings
        )

    def expand(self, pcoll: Any) -> Any:
        """Return the dead letters of a collection."""
        element_type: Any = PubsubMessage if self._with_attributes else bytes | str
        has_ids = self._id_label is not None and self._id_fn is None
        if has_ids:
            pair: Any = tuple[str, element_type]
            assign = beam.Map(_with_id).with_input_types(element_type).with_output_types(pair)
            pcoll = pcoll | "AssignIds" >> assign | "KeepIds" >> beam.Reshuffle()
            element_type = pair
        maker = MessageMaker(
            self._topic,
            with_attributes=self._with_attributes,
            id_label=self._id_label,
            id_of=self._id_fn,
            timestamp_attribute=self._timestamp_attribute,
        )
        publish = PublishFn(
            WriteToPubSub,
            maker,
            SharedPublisher(self._make_publisher),
            has_ids=has_ids,
            dead_letters=self._dead_letters,
        )
        return pcoll | "Publish" >> _IntoGlobalWindow(publish).with_input_types(
            element_type
        ).with_output_types(DeadLetter)

    def display_data(self) -> dict[str, Any]:
        """Return what a runner shows of the sink."""
        topic = self._topic if isinstance(self._topic, str) else "of each element"
        hedging = "off" if self._hedging_settings is None else repr(self._hedging_settings)
        return {
            "topic": DisplayDataItem(topic, label="Pubsub Topic"),
            "id_label": DisplayDataItem(self._id_label, label="ID Label Attribute").drop_if_none(),
            "with_attributes": DisplayDataItem(self._with_attributes, label="With Attributes"),
            "timestamp_attribute": DisplayDataItem(
                self._timestamp_attribute, label="Timestamp Attribute"
            ).drop_if_none(),
            "dead_letters": DisplayDataItem(self._dead_letters, label="Dead Letters"),
            "hedging_settings": DisplayDataItem(hedging, label="Hedging"),
        }


class _IntoGlobalWindow(beam.ParDo):  # type: ignore[misc]
    """A ``ParDo`` that puts out into the global window: the end of a bundle has no other one."""

    def get_windowing(self, _inputs: Any) -> Windowing:
        """Return the windowing of what is put out."""
        return Windowing(GlobalWindows())


def _with_id(element: Any) -> tuple[str, Any]:
    return next_id(), element
