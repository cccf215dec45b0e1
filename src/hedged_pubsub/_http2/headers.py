"""Header blocks (RFC 7541): those of requests are encoded here, those of answers by ``hpack``.

Requests use literal fields and the static table only. So a block is the same on every connection,
at any time: the fields that requests share are encoded once, and a request adds its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from hpack import Decoder, HPACKError

from hedged_pubsub._http2.frames import ErrorCode, Http2Error
from hedged_pubsub._http2.grpc import decode_details

MAX_LIST: Final = 8192
"""Bytes of a decoded header list, where each field counts 32 more. gRPC's own default."""

_MAX_CACHED: Final = 256
"""Header blocks whose meaning is remembered. Most servers send the same two for every answer."""

_LITERAL: Final = 0x00
_NEVER_INDEXED: Final = 0x10
_INDEXED: Final = {
    (b":method", b"POST"): b"\x83",
    (b":scheme", b"http"): b"\x86",
    (b":scheme", b"https"): b"\x87",
}
_NAMES: Final = {
    b":authority": 1,
    b":path": 4,
    b"authorization": 23,
    b"content-type": 31,
    b"user-agent": 58,
}
_SECRET: Final = frozenset({b"authorization", b"x-goog-api-key"})
"""Fields that no proxy on the way may put into a table either."""

_VALID_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


def _integer(first: int, prefix: int, value: int) -> bytes:
    """Encode an integer behind the bits that ``first`` has above the prefix of so many bits."""
    limit = (1 << prefix) - 1
    if value < limit:
        return bytes((first | value,))
    encoded, value = bytearray((first | limit,)), value - limit
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return fields as a header block, or a part of one."""
    parts = []
    for name, value in fields:
        if indexed := _INDEXED.get((name, value)):
            parts.append(indexed)
            continue
        first = _NEVER_INDEXED if name in _SECRET else _LITERAL
        parts.append(_integer(first, 4, _NAMES.get(name, 0)))
        if name not in _NAMES:
            parts += (_integer(0, 7, len(name)), name)
        parts += (_integer(0, 7, len(value)), value)
    return b"".join(parts)


class Block(NamedTuple):
    """What a header block of an answer says.

    Attributes:
        status: The HTTP status; ``None`` in trailers.
        is_grpc: Whether the content is gRPC's.
        code: The gRPC status; ``None`` where there is none.
        details: The text that goes with it.
        fields: All fields but the pseudo-header ones.
    """

    status: int | None
    is_grpc: bool
    code: int | None
    details: str
    fields: tuple[tuple[bytes, bytes], ...]


class BlockDecoder:
    """Decodes the header blocks of one connection, in the order in which they come."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_LIST)
        # The bytes of a block mean the same as long as no other block changes the dynamic table.
        self._known: dict[bytes, Block] = {}

    def decode(self, block: bytes) -> Block:
        """Return what a block says."""
        known = self._known.get(block)
        if known is not None:
            return known
        entries = self._decoder.header_table.dynamic_entries
        before = len(entries), entries[0] if entries else None
        try:
            fields = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            text = f"a header block that cannot be decoded: {error}"
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, text) from error
        parsed = _parse([(bytes(name), bytes(value)) for name, value in fields])
        # An entry that is added is another object, even where it is equal, and goes to the front.
        after = len(entries), entries[0] if entries else None
        if before[0] != after[0] or before[1] is not after[1]:
            self._known.clear()
        # The first byte 001xxxxx changes the size of the table.
        elif len(self._known) < _MAX_CACHED and block and block[0] & 0xE0 != 0x20:
            self._known[block] = parsed
        return parsed


def _parse(fields: list[tuple[bytes, bytes]]) -> Block:
    status: int | None = None
    regular: list[tuple[bytes, bytes]] = []
    for name, value in fields:
        if name == b":status":
            if status is not None or regular or not (len(value) == 3 and value.isdigit()):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a malformed :status")
            status = int(value)
        elif not _VALID_NAME.fullmatch(name) or name in _OF_CONNECTION:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a header field named {name[:64]!r}")
        elif b"\n" in value or b"\r" in value or b"\0" in value:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a malformed value of {name[:64]!r}")
        else:
            regular.append((name, value))
    by_name = dict(regular)
    return Block(
        status=status,
        is_grpc=by_name.get(b"content-type", b"").startswith(b"application/grpc"),
        code=_code(by_name.get(b"grpc-status")),
        details=decode_details(by_name.get(b"grpc-message", b"")),
        fields=tuple(regular),
    )


def _code(value: bytes | None) -> int | None:
    if value is None:
        return None
    # A status that gRPC does not know is UNKNOWN.
    return int(value) if value.isdigit() and len(value) <= 2 and int(value) <= 16 else 2
