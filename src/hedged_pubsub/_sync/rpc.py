"""The publish RPC on gRPC's synchronous channels, started without waiting for it."""

from __future__ import annotations

import contextvars
from typing import Any, cast

import grpc
from google.api_core import exceptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._rpc import PublishMethod
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.direct_call import direct_start
from hedged_pubsub._sync.driver import Call
from hedged_pubsub.events import ORIGINAL


class PublishRpc:
    """The publish RPC of one transport.

    Args:
        transport: Where requests go.
    """

    def __init__(self, transport: PublisherGrpcTransport) -> None:
        self._publish = PublishMethod(transport)
        future = self._publish.multicallable.future
        if self._publish.is_plain:
            self._start = direct_start(self._publish.multicallable)
        else:
            # Interceptors find an empty context, as on the official client's threads: who happens
            # to publish the last message of a batch, within a span perhaps, has no part in it.
            self._start = lambda *args, **kwargs: contextvars.Context().run(future, *args, **kwargs)

    @property
    def is_plain(self) -> bool:
        """Whether no interceptor sits on the channel."""
        return self._publish.is_plain

    def prepare(self, serialized: bytes) -> Any:
        """Return a request as the channel takes it; all attempts share it."""
        return self._publish.prepare(serialized)

    def start(
        self,
        request: Any,
        topic: str,
        attempt: int,
        publish_start_time: float,
        timeout: float | None,
    ) -> Call:
        """Start one RPC.

        Args:
            request: What ``prepare`` returned.
            topic: The full name of the topic.
            attempt: 0 for the original, else the number of the hedge.
            publish_start_time: For the telemetry header; wall seconds.
            timeout: Seconds, or ``None`` for no limit.
        """
        arguments = self._publish.arguments(topic, attempt, publish_start_time)
        with threads.FORK_GATE:
            return cast("Call", self._start(request, timeout, **arguments))

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
        arguments = self._publish.arguments(topic, ORIGINAL, publish_start_time)
        try:
            response = self._publish.multicallable(request, timeout, **arguments)
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        return list(response.message_ids)


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
