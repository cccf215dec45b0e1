"""The publish RPC: started on the transport's channel without waiting for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import grpc
from google.api_core import exceptions
from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import telemetry
from hedged_pubsub._official import call_arguments, is_plain_channel
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.driver import Call
from hedged_pubsub.events import ORIGINAL

_METHOD: Final = "/google.pubsub.v1.Publisher/Publish"


class PublishRpc:
    """The publish RPC of one transport.

    It is called on the transport's channel, not on the one of the generated stub: that one logs at
    DEBUG level, and waits for the answer to log it.

    A request is serialized once, and its bytes are what every attempt sends. Only interceptors
    on the channel, the user's or an instrumentation's, get to see the request itself, of the type
    that the official client sends.

    Args:
        transport: Where requests go.
    """

    def __init__(self, transport: PublisherGrpcTransport) -> None:
        self._transport = transport
        channel = transport.grpc_channel
        self._is_plain = is_plain_channel(channel)
        if self._is_plain:
            self._method = channel.unary_unary(
                _METHOD, response_deserializer=gapic_types.PublishResponse.pb().FromString
            )
        else:
            self._method = channel.unary_unary(
                _METHOD,
                request_serializer=gapic_types.PublishRequest.serialize,
                response_deserializer=gapic_types.PublishResponse.deserialize,
            )
        self._arguments: dict[str, Mapping[str, Any]] = {}

    def prepare(self, serialized: bytes) -> Any:
        """Return a request as the channel takes it; all attempts share it."""
        if self._is_plain:
            return serialized
        return gapic_types.PublishRequest.deserialize(serialized)

    def start(
        self,
        request: Any,
        topic: str,
        attempt: int,
        publish_start_time: float,
        timeout: float | None,
    ) -> Call:
        """Start one RPC with what the official client sends, and the telemetry header.

        Args:
            request: What ``prepare`` returned.
            topic: The full name of the topic.
            attempt: 0 for the original, else the number of the hedge.
            publish_start_time: For the header; wall seconds.
            timeout: Seconds, or ``None`` for no limit.
        """
        arguments = self._call_arguments(topic, attempt, publish_start_time)
        with threads.FORK_GATE:
            return cast("Call", self._method.future(request, timeout, **arguments))

    def cancel(self, call: Call) -> None:
        """Cancel an RPC if it has not ended."""
        with threads.FORK_GATE:
            cast("Any", call).cancel()

    def call(
        self, request: Any, topic: str, publish_start_time: float, timeout: float
    ) -> list[str]:
        """Send the original and wait for its message ids; needs no other thread.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
        """
        arguments = self._call_arguments(topic, ORIGINAL, publish_start_time)
        try:
            response = self._method(request, timeout, **arguments)
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        return list(response.message_ids)

    def _call_arguments(
        self, topic: str, attempt: int, publish_start_time: float
    ) -> dict[str, Any]:
        arguments = self._arguments.get(topic)
        if arguments is None:
            arguments = self._arguments[topic] = call_arguments(self._transport, topic)
        header = telemetry.encode(attempt, publish_start_time)
        return {
            **arguments,
            "metadata": (*arguments["metadata"], (telemetry.HEADER, header)),
        }


def message_ids(call: Call) -> list[str]:
    """Return the message ids that an ended RPC was answered with.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
    """
    try:
        response = cast("Any", call).result()
    except grpc.RpcError as error:
        raise exceptions.from_grpc_error(error) from error
    except grpc.FutureCancelledError as error:
        raise exceptions.Cancelled("the publish request was cancelled locally") from error
    return list(response.message_ids)
