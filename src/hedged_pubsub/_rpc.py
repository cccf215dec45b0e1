"""The publish RPC as both kinds of transport have it: method, request and metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import grpc
from google.api_core import exceptions
from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub import telemetry
from hedged_pubsub._official import call_arguments, is_plain_channel

METHOD: Final = "/google.pubsub.v1.Publisher/Publish"

_NO_ANSWER: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


class PublishMethod:
    """The publish method of one transport's channel.

    It is called on the transport's channel, not on the one of the generated stub: that one logs at
    DEBUG level, and waits for the answer to log it.

    A request is serialized once, and its bytes are what every attempt sends. Only interceptors
    on the channel, the user's or an instrumentation's, get to see the request itself, of the type
    that the official client sends.

    Args:
        transport: Whose method it is.
        channel: Where requests go; the transport's channel if ``None``.
        with_telemetry: Whether attempts carry the telemetry header.

    Attributes:
        channel: Where requests go.
        is_plain: Whether no interceptor sits on the channel, so that no code of a user runs.
        multicallable: gRPC's.
    """

    def __init__(
        self, transport: PublisherTransport, channel: Any = None, *, with_telemetry: bool = True
    ) -> None:
        self._transport = transport
        self._with_telemetry = with_telemetry
        if channel is None:
            channel = cast("Any", transport).grpc_channel
        self.channel = channel
        self.is_plain = is_plain_channel(channel)
        self.multicallable: Any
        if self.is_plain:
            self.multicallable = channel.unary_unary(
                METHOD, response_deserializer=gapic_types.PublishResponse.pb().FromString
            )
        else:
            self.multicallable = channel.unary_unary(
                METHOD,
                request_serializer=gapic_types.PublishRequest.serialize,
                response_deserializer=gapic_types.PublishResponse.deserialize,
            )
        self._arguments: dict[str, Mapping[str, Any]] = {}

    def prepare(self, request: Any) -> Any:
        """Return a request as the channel takes it, for all attempts on it to share.

        Args:
            request: Serialized, or what a method of another channel has prepared.
        """
        if self.is_plain is isinstance(request, bytes):
            return request
        if self.is_plain:
            return gapic_types.PublishRequest.serialize(request)
        return gapic_types.PublishRequest.deserialize(request)

    def arguments(self, topic: str, attempt: int, publish_start_time: float) -> Mapping[str, Any]:
        """Return what goes with a request: what the official client sends, and the header.

        Args:
            topic: The full name of the topic.
            attempt: 0 for the original, else the number of the hedge.
            publish_start_time: For the header; wall seconds.
        """
        arguments = self._arguments.get(topic)
        if arguments is None:
            arguments = self._arguments[topic] = call_arguments(self._transport, topic)
        if not self._with_telemetry:
            return arguments
        header = telemetry.encode(attempt, publish_start_time)
        return {
            **arguments,
            # A list of its own for each attempt: an interceptor may add to it, as officially.
            "metadata": [*arguments["metadata"], (telemetry.HEADER, header)],
        }


def is_answer(error: BaseException) -> bool:
    """Tell whether an error came from the server rather than from gRPC at this end.

    Where both can be, which ``UNAVAILABLE`` is an example of, it counts as no answer.
    """
    return (
        isinstance(error, exceptions.GoogleAPICallError)
        and error.grpc_status_code not in _NO_ANSWER
    )
