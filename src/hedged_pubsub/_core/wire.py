"""The little of the protobuf wire format that is cheaper written than asked for."""

from __future__ import annotations

import functools
from typing import Final

# PublishRequest { string topic = 1; repeated PubsubMessage messages = 2; }
_TOPIC_TAG: Final = b"\x0a"
_MESSAGE_TAG: Final = b"\x12"
# PubsubMessage { bytes data = 1; }
_DATA_TAG: Final = b"\x0a"

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


def varint(value: int) -> bytes:
    """Encode a whole number that is not negative."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def topic_name(topic: object) -> str:
    """Return a topic as plain text: one that is an Enum would print the name of its class.

    Raises:
        TypeError: If the topic is no text.
    """
    if isinstance(topic, str):
        return str.__str__(topic)
    raise TypeError(
        'topic must be the full name of a topic, such as "projects/shop/topics/orders"; '
        f"got {topic!r}"
    )


@functools.lru_cache(maxsize=256)
def topic_field(topic: str) -> bytes:
    """Serialize a publish request that has a topic and no message yet."""
    encoded = topic_name(topic).encode()
    return _TOPIC_TAG + varint(len(encoded)) + encoded if encoded else b""


def message_prefix(size: int) -> bytes:
    """Return what stands before a serialized message of a size in a publish request."""
    return _MESSAGE_TAG + varint(size)


def data_prefix(size: int) -> bytes:
    """Return what stands before the data of a message that has nothing else."""
    return _DATA_TAG + varint(size) if size else b""
