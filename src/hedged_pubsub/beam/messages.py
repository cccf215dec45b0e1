"""From a pipeline's element to the message that is published, and what becomes of one refused."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp

# What the service accepts; see its page on quotas and limits.
_MAX_DATA_BYTES: Final = 10_000_000
_MAX_ATTRIBUTES: Final = 100
_MAX_KEY_BYTES: Final = 256
_MAX_VALUE_BYTES: Final = 1024

_TOPIC: Final = re.compile(r"projects/[^/\s]+/topics/[^/\s]+")
_MAX_KNOWN_TOPICS: Final = 10_000

TopicOf = Callable[[Any], str]
IdOf = Callable[[Any], str]


@dataclass(frozen=True)
class DeadLetter:
    """An element that Pub/Sub has refused for good.

    Attributes:
        element: The element as the sink got it.
        topic: The full name of the topic it was for; ``None`` if that could not be told.
        error: Why it was refused: the error's type and text.
    """

    element: Any
    topic: str | None
    error: str


class Message(NamedTuple):
    """What is published for an element."""

    topic: str
    data: bytes
    attributes: dict[str, str]


class RefusedError(Exception):
    """An element of which no message can be made; the error says why."""

    def __init__(self, topic: str | None, error: Exception) -> None:
        super().__init__(topic, error)
        self.topic = topic
        self.error = error


def check_topic(topic: object) -> str:
    """Return the full name of a topic, or raise TypeError or ValueError."""
    if not isinstance(topic, str):
        raise TypeError(f"topic must be the full name of a topic; got {topic!r}")
    if not _TOPIC.fullmatch(topic):
        raise ValueError(f"topic={topic!r} must have the form 'projects/<project>/topics/<topic>'")
    return topic


class MessageMaker:
    """Makes the messages of one sink; goes to the workers in a pickle.

    Args:
        topic: The topic of all elements, or what returns that of an element.
        with_attributes: Whether elements are ``PubsubMessage``; else they are ``bytes`` or text.
        id_label: The attribute with the id; ``None`` for none.
        id_of: What returns the id of an element; ``None`` if ids are assigned before.
        timestamp_attribute: The attribute with the timestamp; ``None`` for none.
    """

    def __init__(
        self,
        topic: str | TopicOf,
        *,
        with_attributes: bool,
        id_label: str | None,
        id_of: IdOf | None,
        timestamp_attribute: str | None,
    ) -> None:
        self._topic = topic
        self._with_attributes = with_attributes
        self._id_label = id_label
        self._id_of = id_of
        self._timestamp_attribute = timestamp_attribute
        self._known_topics: set[str] = set()

    def make(self, element: Any, timestamp: Timestamp, assigned_id: str = "") -> Message:
        """Return the message of an element.

        Raises:
            RefusedError: If the service would refuse it, whenever it is published.
        """
        topic = None
        try:
            topic = self._topic_of(element)
            data, attributes = self._content_of(element)
            if self._id_label is not None and self._id_label not in attributes:
                id_of = self._id_of
                attributes[self._id_label] = assigned_id if id_of is None else id_of(element)
            if self._timestamp_attribute is not None:
                attributes[self._timestamp_attribute] = _milliseconds(timestamp)
            if attributes or not data or len(data) > _MAX_DATA_BYTES:
                _check(data, attributes)
        except (TypeError, ValueError) as error:
            raise RefusedError(topic, error) from error
        return Message(topic, data, attributes)

    def _topic_of(self, element: Any) -> str:
        if isinstance(self._topic, str):
            return self._topic
        topic = self._topic(element)
        if topic not in self._known_topics:
            check_topic(topic)
            if len(self._known_topics) >= _MAX_KNOWN_TOPICS:
                self._known_topics.clear()
            self._known_topics.add(topic)
        return topic

    def _content_of(self, element: Any) -> tuple[bytes, dict[str, str]]:
        if not self._with_attributes:
            if isinstance(element, str):
                return element.encode(), {}
            if not isinstance(element, bytes):
                raise TypeError(
                    f"elements must be bytes; got {type(element).__name__}: encode them, or pass "
                    "with_attributes=True for PubsubMessage"
                )
            return element, {}
        if not isinstance(element, PubsubMessage):
            raise TypeError(
                f"with_attributes=True takes PubsubMessage elements; got {type(element).__name__}"
            )
        if element.ordering_key:
            raise ValueError(
                f"ordering_key={element.ordering_key!r}: hedging excludes ordering. Use "
                "apache_beam.io.WriteToPubSub with publish_with_ordering_key=True"
            )
        data = element.data if element.data is not None else b""
        if isinstance(data, str):
            data = data.encode()
        if not isinstance(data, bytes):
            raise TypeError(f"a message's data must be bytes; got {type(data).__name__}")
        return data, dict(element.attributes or {})


def _milliseconds(timestamp: Timestamp) -> str:
    """Return a timestamp as ``ReadFromPubSub(timestamp_attribute=…)`` reads it."""
    if MIN_TIMESTAMP < timestamp < MAX_TIMESTAMP:
        return str(timestamp.micros // 1000)
    return str(int(time.time() * 1000))  # an element without one, as in most batch pipelines


def _check(data: bytes, attributes: dict[Any, Any]) -> None:
    """Raise TypeError or ValueError for a message that the service would refuse."""
    if not data and not attributes:
        raise ValueError("a message must have data or attributes; this one has neither")
    if len(data) > _MAX_DATA_BYTES:
        raise ValueError(f"a message's data has {len(data)} bytes; at most {_MAX_DATA_BYTES}")
    if len(attributes) > _MAX_ATTRIBUTES:
        raise ValueError(f"a message has {len(attributes)} attributes; at most {_MAX_ATTRIBUTES}")
    for key, value in attributes.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"an attribute must be text; got {key!r}: {value!r}")
        if not 1 <= len(key.encode()) <= _MAX_KEY_BYTES or key.startswith("goog"):
            raise ValueError(
                f"an attribute's name must have 1 to {_MAX_KEY_BYTES} bytes, and not start with "
                f"'goog'; got {key!r}"
            )
        if len(value.encode()) > _MAX_VALUE_BYTES:
            raise ValueError(
                f"the attribute {key!r} has {len(value.encode())} bytes; at most {_MAX_VALUE_BYTES}"
            )
