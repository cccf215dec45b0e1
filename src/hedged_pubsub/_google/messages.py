"""Messages as the official client checks and serializes them."""

from __future__ import annotations

from typing import Any, Final

from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.pubsub_v1 import types as gapic_types

from hedged_pubsub._core.batching import MAX_REQUEST_SIZE, Message
from hedged_pubsub._core.wire import data_prefix, message_prefix, topic_field
from hedged_pubsub._google.tracing import MessageTracing

_RAW_MESSAGE: Final[Any] = gapic_types.PubsubMessage.pb()


def write(
    message: Message, topic: str, data: bytes, attributes: dict[str, Any], *, is_traced: bool
) -> int:
    """Serialize a message, start its spans if it has any, and return its size in bytes."""
    message.permit = message.tracing = None
    if not is_traced:
        message.prefix, message.body, size = encode_message(data, attributes)
        return size
    raw = make_message(data, attributes)
    message.tracing = MessageTracing(raw, topic)
    message.body = raw.SerializeToString()
    message.prefix = message_prefix(len(message.body))
    return len(message.body)


def encode_message(data: bytes, attributes: dict[str, Any]) -> tuple[bytes, bytes, int]:
    """Return a message as a request has it: what stands before, the rest, and its own size."""
    if attributes or type(data) is not bytes:
        body: bytes = make_message(data, attributes).SerializeToString()
        return message_prefix(len(body)), body, len(body)
    inner = data_prefix(len(data))  # data alone is not copied: all but it stands before
    size = len(inner) + len(data)
    return message_prefix(size) + inner, data, size


def make_message(data: bytes, attributes: dict[str, Any]) -> Any:
    """Make a raw message, or raise TypeError; in ``attributes``, replace UTF-8 bytes by text."""
    if not isinstance(data, bytes):
        raise TypeError("Data being published to Pub/Sub must be sent as a bytestring.")
    for key, value in attributes.items():
        if isinstance(value, bytes):
            attributes[key] = value.decode("utf-8")
        elif not isinstance(value, str):
            text = "All attributes being published to Pub/Sub must be sent as text strings."
            raise TypeError(text)
    return _RAW_MESSAGE(data=data, attributes=attributes)


def check_size(topic: str, size: int) -> None:
    """Raise MessageTooLargeError if no request may be as large as this message's bytes make it."""
    if len(topic_field(topic)) + size > MAX_REQUEST_SIZE:
        raise MessageTooLargeError(
            "The message being published would produce too large a publish request that would "
            f"exceed the maximum allowed size on the backend ({MAX_REQUEST_SIZE} bytes)."
        )
