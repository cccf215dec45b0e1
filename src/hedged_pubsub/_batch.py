"""What a batch holds and when it is full, however it is driven.

Batches are made exactly as in the official client, so that the same messages make the same ones.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any, Final

from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError, PublishError
from google.cloud.pubsub_v1.types import BatchSettings
from google.pubsub_v1 import types as gapic_types

from hedged_pubsub._rpc import is_answer
from hedged_pubsub._tracing import BatchTracing, MessageTracing
from hedged_pubsub._wire import varint
from hedged_pubsub.call_policy import CallPolicy, CallState
from hedged_pubsub.connections import Connection
from hedged_pubsub.events import ORIGINAL, Fail, Failed

_LOGGER = logging.getLogger(__name__)

_MAX_REQUEST_SIZE: Final = 10_000_000
"""Bytes that the service accepts in one request, as the official client has it."""

# PublishRequest { string topic = 1; repeated PubsubMessage messages = 2; }
_TOPIC_TAG: Final = b"\x0a"
_MESSAGE_TAG: Final = b"\x12"
# PubsubMessage { bytes data = 1; }
_DATA_TAG: Final = b"\x0a"

NOWHERE: Final[Connection[Any]] = Connection(None, own=False)
"""Where an attempt travels that was not sent."""

_RAW_MESSAGE: Final[Any] = gapic_types.PubsubMessage.pb()


class BatchContents:
    """Messages of one topic and one call policy, and how far their call has come.

    Args:
        topic: The topic's full name.
        policy: The retry and the timeout of its messages.

    Attributes:
        count: How many messages there are.
        size: What the request takes on the wire, in bytes.
        publish_start_time: When ``publish()`` was called for the oldest message, in wall seconds.
        original_on: The connection that the original was sent on last.
        hedges_on: The connection that a hedge was sent on last.
        credit: The sizes for which flow control lent credit; ``None`` where it does not count.
    """

    __slots__ = (
        "_call_state",
        "_parts",
        "_policy",
        "_tracing",
        "count",
        "credit",
        "hedges_on",
        "original_on",
        "publish_start_time",
        "size",
        "topic",
    )

    def __init__(self, topic: str, policy: CallPolicy) -> None:
        self.topic = topic
        self._policy = policy
        # The request on the wire, piece by piece. Joined, it is what protobuf would make of it:
        # each message is serialized, and measured, once.
        self._parts: list[bytes] = [topic_field(topic)]
        self.count = 0
        self.size = len(self._parts[0])
        self.publish_start_time = math.inf
        self.credit: list[int] | None = None
        self._tracing: BatchTracing | None = None
        self._call_state: CallState | None = None
        self.original_on: Connection[Any] = NOWHERE
        self.hedges_on: Connection[Any] = NOWHERE

    def append(self, prefix: bytes, body: bytes, publish_start_time: float) -> None:
        """Add a message.

        Args:
            prefix: What stands before it in the request.
            body: The serialized message.
            publish_start_time: When its ``publish()`` was called, in wall seconds.
        """
        self._parts += (prefix, body)
        self.count += 1
        self.size += len(prefix) + len(body)
        if publish_start_time < self.publish_start_time:
            self.publish_start_time = publish_start_time

    def lend(self, size: int) -> None:
        """Take note of the credit for a message, in bytes."""
        if self.credit is None:
            self.credit = []
        self.credit.append(size)

    def trace(self, message: MessageTracing) -> None:
        """Take over the spans of the message that was added last."""
        if self._tracing is None:
            self._tracing = BatchTracing(self.topic)
        self._tracing.add(message)

    def serialize(self) -> bytes:
        """Return the request, start the RPC's span, and let go of the messages. Once."""
        if self._tracing is not None:
            self._tracing.start()
        request = b"".join(self._parts)
        self._parts.clear()
        return request

    @property
    def total_timeout(self) -> float:
        """Seconds from the commit after which nothing of the batch is sent any more."""
        return self._policy.total_timeout

    def next_timeout(self) -> float | None:
        """Return the seconds that the next original may take; ``None`` for no limit."""
        policy = self._policy
        return policy.every_timeout if policy.has_constant_timeout else self._call().next_timeout()

    def travels_on(self, attempt: int, connection: Connection[Any]) -> None:
        """Take note of the connection that an attempt is sent on."""
        if attempt == ORIGINAL:
            self.original_on = connection
        else:
            self.hedges_on = connection

    def judge(self, error: BaseException) -> Failed:
        """Ask the retry policy about an error of the original."""
        if is_answer(error):
            self.original_on.heard()
        return self._call().judge(error)

    def _call(self) -> CallState:
        if self._call_state is None:
            self._call_state = self._policy.start_call()
        return self._call_state

    def check(self, message_ids: list[str]) -> list[str]:
        """Return the message ids of an answer, if they are as many as the messages.

        Raises:
            google.cloud.pubsub_v1.publisher.exceptions.PublishError: If they are not.
        """
        if len(message_ids) != self.count:
            _LOGGER.error("Only %s of %s messages were published.", len(message_ids), self.count)
            raise PublishError("Some messages were not successfully published.")
        return message_ids

    def error_of(self, failure: Fail) -> BaseException:
        """Return what the official client would raise for a failed batch."""
        if not failure.retry_timed_out:
            return failure.error
        error = exceptions.RetryError(
            f"Timeout of {self.total_timeout:0.1f}s exceeded", failure.error
        )
        error.__cause__ = failure.error
        return error


class BatchLimits:
    """When a batch is full.

    Args:
        settings: The publisher's.

    Attributes:
        max_latency: Seconds that a batch waits for more messages.
    """

    def __init__(self, settings: BatchSettings) -> None:
        self._max_size: int = min(settings.max_bytes, _MAX_REQUEST_SIZE)
        self._max_messages: int = settings.max_messages
        self.max_latency: float = settings.max_latency

    def is_full(self, batch: BatchContents, size: int) -> bool:
        """Tell whether a message of that size fills the batch, or does not fit any more."""
        return batch.size + size > self._max_size or batch.count + 1 >= self._max_messages


def check_size(topic: str, size: int) -> None:
    """Refuse a message that the service would not accept, not even alone.

    Args:
        topic: The topic's full name.
        size: What the message adds to a request, in bytes.

    Raises:
        google.cloud.pubsub_v1.publisher.exceptions.MessageTooLargeError: If it is too large.
    """
    if len(topic_field(topic)) + size > _MAX_REQUEST_SIZE:
        raise MessageTooLargeError(
            "The message being published would produce too large a publish request that would "
            f"exceed the maximum allowed size on the backend ({_MAX_REQUEST_SIZE} bytes)."
        )


def serialize_message(data: bytes, attributes: dict[str, Any]) -> bytes:
    """Serialize a message, with the official client's checks; see ``make_message``.

    One without attributes is written by hand, which takes a quarter of the time.
    """
    if attributes or not isinstance(data, bytes):
        body: bytes = make_message(data, attributes).SerializeToString()
        return body
    return _DATA_TAG + varint(len(data)) + data if data else b""


def make_message(data: bytes, attributes: dict[str, Any]) -> Any:
    """Make a raw message, with the official client's checks.

    Args:
        data: The body.
        attributes: Text, or UTF-8 bytes, which are replaced by text.

    Raises:
        TypeError: If the body is not ``bytes``, or an attribute neither ``str`` nor ``bytes``.
    """
    if not isinstance(data, bytes):
        raise TypeError("Data being published to Pub/Sub must be sent as a bytestring.")
    if not attributes:
        return _RAW_MESSAGE(data=data)
    for key, value in attributes.items():
        if isinstance(value, str):
            continue
        if not isinstance(value, bytes):
            raise TypeError(
                "All attributes being published to Pub/Sub must be sent as text strings."
            )
        attributes[key] = value.decode("utf-8")
    return _RAW_MESSAGE(data=data, attributes=attributes)


@functools.lru_cache(maxsize=256)
def topic_field(topic: str) -> bytes:
    """Serialize a request that has a topic and no message yet.

    Raises:
        TypeError: If the topic is no text.
    """
    if not isinstance(topic, str):
        raise TypeError(
            'topic must be the full name of a topic, such as "projects/shop/topics/orders"; '
            f"got {topic!r}"
        )
    encoded = topic.encode()
    return _TOPIC_TAG + varint(len(encoded)) + encoded if encoded else b""


def message_prefix(body: bytes) -> bytes:
    """Return what stands before a serialized message in a request."""
    return _MESSAGE_TAG + varint(len(body))
