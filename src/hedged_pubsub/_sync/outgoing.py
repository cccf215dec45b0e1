"""Committed batches on their way out: the request, its RPCs, and what becomes of the futures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final, cast

import grpc
from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import PublishError
from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import telemetry
from hedged_pubsub._official import InterceptedBatch, call_arguments
from hedged_pubsub._sync.driver import Call
from hedged_pubsub.call_policy import CallPolicy
from hedged_pubsub.events import ORIGINAL, Fail, Failed

_LOGGER = logging.getLogger(__name__)

_METHOD: Final = "/google.pubsub.v1.Publisher/Publish"


class PublishRpc:
    """The publish RPC of one transport, started without waiting for it.

    It is called on the transport's channel, not on the one of the generated stub: that one logs at
    DEBUG level, and waits for the answer to log it.

    Args:
        transport: Where requests go.
    """

    def __init__(self, transport: PublisherGrpcTransport) -> None:
        self._transport = transport
        self._method = transport.grpc_channel.unary_unary(
            _METHOD,
            request_serializer=gapic_types.PublishRequest.serialize,
            response_deserializer=gapic_types.PublishResponse.deserialize,
        )
        self._arguments: dict[str, Mapping[str, Any]] = {}

    def start(self, request: Any, topic: str, telemetry_header: str, timeout: float | None) -> Call:
        """Start one RPC with what the official client sends, and the telemetry header."""
        arguments = self._arguments.get(topic)
        if arguments is None:
            arguments = self._arguments[topic] = call_arguments(self._transport, topic)
        metadata = (*arguments["metadata"], (telemetry.HEADER, telemetry_header))
        call = self._method.future(request, timeout=timeout, **{**arguments, "metadata": metadata})
        return cast("Call", call)


class OutgoingBatch:
    """What the driver needs of a committed batch.

    Args:
        batch: The batch.
        policy: The retry and the timeout of its messages.
        rpc: How it is sent.
    """

    __slots__ = ("_batch", "_call_state", "_request", "_rpc", "total_timeout")

    def __init__(self, batch: InterceptedBatch, policy: CallPolicy, rpc: PublishRpc) -> None:
        self._batch = batch
        self._call_state = policy.start_call()
        self._rpc = rpc
        self._request = batch.build_request()
        self.total_timeout = policy.total_timeout
        batch.start_span()

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return self._batch.topic

    def send(self, attempt: int, timeout: float | None) -> Call:
        """Start an RPC, without waiting for it."""
        header = telemetry.encode(attempt, self._batch.publish_start_time)
        if attempt == ORIGINAL:
            timeout = self._call_state.next_timeout()
        return self._rpc.start(self._request, self._batch.topic, header, timeout)

    def outcome(self, call: Call) -> object:
        """Return the message ids of an ended RPC.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
        """
        try:
            response = cast("Any", call).result()
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        except grpc.FutureCancelledError as error:
            raise exceptions.Cancelled("the publish request was cancelled locally") from error
        message_ids = list(response.message_ids)
        if len(message_ids) != len(self._batch):
            _LOGGER.error(
                "Only %s of %s messages were published.", len(message_ids), len(self._batch)
            )
            raise PublishError("Some messages were not successfully published.")
        return message_ids

    def judge(self, error: BaseException) -> Failed:
        """Ask the retry policy about an error of the original."""
        return self._call_state.judge(error)

    def succeed(self, answer: object, attempt: int) -> None:  # noqa: ARG002 - part of the protocol
        """Resolve the futures with the message ids."""
        self._batch.set_result(cast("list[str]", answer))

    def fail(self, failure: Fail) -> None:
        """Fail the futures with what the official client would raise."""
        error = failure.error
        if failure.retry_timed_out:
            retry_error = exceptions.RetryError(
                f"Timeout of {self.total_timeout:0.1f}s exceeded", error
            )
            retry_error.__cause__ = error
            error = retry_error
        self._batch.set_exception(error)
