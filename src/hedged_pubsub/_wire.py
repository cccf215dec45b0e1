"""The little of the protobuf wire format that is cheaper written than asked for."""

from __future__ import annotations

from typing import Final

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
