"""The publish method of a channel: what a request looks like, and what goes with it."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final, cast

from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub._core.wire import varint
from hedged_pubsub._google.official import call_arguments, is_plain_channel

METHOD: Final = "/google.pubsub.v1.Publisher/Publish"

TELEMETRY_HEADER: Final = "x-goog-pubsub-client-telemetry"
"""The request header by which the service tells hedges from originals."""

# Field numbers and wire types of google.pubsub.v1.PubsubClientTelemetry:
#   publish_operation = 1 { int32 hedged_attempt_count = 1; Timestamp publish_start_time = 2; }
# Written by hand, because the type came to google-cloud-pubsub later than the rest of what this
# package needs, and because every request needs it. A test compares the two.
_VARINT_1: Final = b"\x08"
_MESSAGE_1: Final = b"\x0a"
_MESSAGE_2: Final = b"\x12"


class PublishMethod:
    """The publish method of one transport's channel.

    Not of the generated stub's, which logs at DEBUG level and waits for the answer to log it. Each
    attempt sends the same bytes. Only interceptors on the channel see the request itself, as they
    do officially; where ``is_plain``, there are none: no code of a user runs.
    """

    def __init__(
        self, transport: PublisherTransport, channel: Any = None, *, with_telemetry: bool = True
    ) -> None:
        self._transport = transport
        self._with_telemetry = with_telemetry
        self.channel: Any = cast("Any", transport).grpc_channel if channel is None else channel
        self.is_plain = is_plain_channel(self.channel)
        self.multicallable = self._make()
        self._arguments: dict[str, Mapping[str, Any]] = {}

    def _make(self) -> Any:
        answer = gapic_types.PublishResponse
        return self.channel.unary_unary(
            METHOD,
            None if self.is_plain else gapic_types.PublishRequest.serialize,
            answer.pb().FromString if self.is_plain else answer.deserialize,
        )

    def prepare(self, request: Any) -> Any:
        """Return a request, serialized or of another channel's, as the channel takes it."""
        if self.is_plain is isinstance(request, bytes):
            return request
        if self.is_plain:
            return gapic_types.PublishRequest.serialize(request)
        return gapic_types.PublishRequest.deserialize(request)

    def arguments(self, topic: str, attempt: int, publish_start_time: float) -> Mapping[str, Any]:
        """Return what goes with a request: what the official client sends, and the header."""
        arguments = self._arguments.get(topic)
        if arguments is None:
            arguments = self._arguments[topic] = call_arguments(self._transport, topic)
        if not self._with_telemetry:
            return arguments
        header = (TELEMETRY_HEADER, encode_telemetry(attempt, publish_start_time))
        # A list of its own for each attempt: an interceptor may add to it, as officially.
        return {**arguments, "metadata": [*arguments["metadata"], header]}


class AsyncPublishMethod(PublishMethod):
    """The publish method of one asyncio transport's channel.

    The asyncio transport has no channel without its logging interceptor, which costs a task and a
    request object for every request, and at DEBUG level logs every payload. It is left out here.
    """

    def _make(self) -> Any:
        logging = getattr(self._transport, "_interceptor", None)
        interceptors = getattr(self.channel, "_unary_unary_interceptors", None) or ()
        if logging is None or logging not in interceptors:
            return super()._make()
        the_users = [interceptor for interceptor in interceptors if interceptor is not logging]
        self.is_plain = not the_users
        made = super()._make()
        made._interceptors = the_users
        return made


def encode_telemetry(attempt: int, publish_start_time: float | None = None) -> str:
    """Return the header's value for an attempt: the serialized message in standard base64.

    The start time is that of the oldest ``publish()`` in the batch, in seconds since the epoch.
    """
    operation = _VARINT_1 + varint(attempt) if attempt else b""
    if publish_start_time is not None:
        seconds = int(publish_start_time)
        nanos = int((publish_start_time - seconds) * 1e9)
        timestamp: bytes = Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
        operation += _MESSAGE_2 + bytes((len(timestamp),)) + timestamp
    # Lengths below 128 are one byte, and these are below 30.
    telemetry = _MESSAGE_1 + bytes((len(operation),)) + operation
    return binascii.b2a_base64(telemetry, newline=False).decode("ascii")
