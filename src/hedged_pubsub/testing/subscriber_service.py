"""``google.pubsub.v1.Subscriber``: subscriptions and delivery.

Waiting for messages takes threads of its own: one for a Pull that finds none, two for a
StreamingPull. gRPC's workers are left to the Publish calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf import empty_pb2
from google.pubsub_v1 import types

from hedged_pubsub.testing.broker import Broker, StatusError, SubscriptionProto
from hedged_pubsub.testing.publisher_service import page, unary
from hedged_pubsub.testing.subscription import Delivery, Subscription

_PullRequest = types.PullRequest.pb()
_PullResponse = types.PullResponse.pb()
_StreamingPullRequest = types.StreamingPullRequest.pb()
_StreamingPullResponse = types.StreamingPullResponse.pb()
_ReceivedMessage = types.ReceivedMessage.pb()

# How long a Pull waits for the first message before it answers with none, if the client's deadline
# allows; the answer must be on its way before that deadline.
_PULL_SECONDS = 10.0
_PULL_MARGIN = 0.1

# A response stays well below the 4 MB that a client accepts by default, if messages are small.
_MESSAGES_PER_RESPONSE = 100

_Send = Callable[[Any], None]


def methods(broker: Broker) -> dict[str, grpc.RpcMethodHandler]:
    """Returns the methods by name."""
    list_response = types.ListSubscriptionsResponse.pb()

    def list_subscriptions(request: Any) -> Any:
        found, token = page(
            broker.subscriptions(project=request.project), request.page_size, request.page_token
        )
        return list_response(subscriptions=found, next_page_token=token)

    def delete_subscription(request: Any) -> Any:
        broker.delete_subscription(request.subscription)
        return empty_pb2.Empty()

    def acknowledge(request: Any) -> Any:
        broker.subscription(request.subscription).acknowledge(request.ack_ids)
        return empty_pb2.Empty()

    def modify_ack_deadline(request: Any) -> Any:
        broker.subscription(request.subscription).modify_ack_deadline(
            request.ack_ids, request.ack_deadline_seconds
        )
        return empty_pb2.Empty()

    return {
        "CreateSubscription": unary(
            broker.create_subscription, SubscriptionProto, SubscriptionProto
        ),
        "GetSubscription": unary(
            lambda request: broker.subscription(request.subscription).proto,
            types.GetSubscriptionRequest.pb(),
            SubscriptionProto,
        ),
        "ListSubscriptions": unary(
            list_subscriptions, types.ListSubscriptionsRequest.pb(), list_response
        ),
        "DeleteSubscription": unary(
            delete_subscription, types.DeleteSubscriptionRequest.pb(), empty_pb2.Empty
        ),
        "Acknowledge": unary(acknowledge, types.AcknowledgeRequest.pb(), empty_pb2.Empty),
        "ModifyAckDeadline": unary(
            modify_ack_deadline, types.ModifyAckDeadlineRequest.pb(), empty_pb2.Empty
        ),
        "Pull": _pull_method(broker),
        "StreamingPull": _streaming_pull_method(broker),
    }


def _pull_method(broker: Broker) -> grpc.RpcMethodHandler:
    def pull(request: Any, context: grpc.ServicerContext, send: _Send) -> None:
        if request.max_messages < 1:
            text = f"max_messages={request.max_messages} must be at least 1"
            _fail(context, send, StatusError(grpc.StatusCode.INVALID_ARGUMENT, text))
            return
        try:
            subscription = broker.subscription(request.subscription)
        except StatusError as error:
            _fail(context, send, error)
            return
        if not context.add_callback(subscription.wake):
            return

        def take(timeout: float) -> bool:
            deliveries = subscription.take(
                context,
                max_messages=request.max_messages,
                timeout=timeout,
                cancelled=lambda: not context.is_active(),
            )
            if deliveries or timeout or request.return_immediately:
                send(_PullResponse(received_messages=_received(deliveries)))
                send(None)
                return True
            return False

        if not take(0.0):
            remaining = context.time_remaining()
            wait = _PULL_SECONDS if remaining is None else min(remaining, _PULL_SECONDS)
            wait = max(wait - _PULL_MARGIN, _PULL_MARGIN)
            threading.Thread(
                target=take, args=(wait,), name="pubsub-server-pull", daemon=True
            ).start()

    pull.experimental_non_blocking = True  # type: ignore[attr-defined]
    return grpc.unary_stream_rpc_method_handler(
        pull,
        request_deserializer=_PullRequest.FromString,
        response_serializer=_PullResponse.SerializeToString,
    )


def _streaming_pull_method(broker: Broker) -> grpc.RpcMethodHandler:
    def streaming_pull(requests: Iterator[Any], context: Any, send: _Send) -> None:
        stream = _Stream(broker, requests, context, send)
        threading.Thread(target=stream.run, name="pubsub-server-stream", daemon=True).start()

    streaming_pull.experimental_non_blocking = True  # type: ignore[attr-defined]
    return grpc.stream_stream_rpc_method_handler(
        streaming_pull,
        request_deserializer=_StreamingPullRequest.FromString,
        response_serializer=_StreamingPullResponse.SerializeToString,
    )


class _Stream:
    """One StreamingPull: a thread that reads requests, one that sends messages."""

    def __init__(self, broker: Broker, requests: Iterator[Any], context: Any, send: _Send) -> None:
        self._broker = broker
        self._requests = requests
        self._context = context
        self._send = send
        self._ack_deadline = 0

    def run(self) -> None:
        """Reads requests until the client closes or cancels the stream."""
        try:
            first = next(self._requests)
            subscription = self._broker.subscription(first.subscription)
        except StatusError as error:
            _fail(self._context, self._send, error)
            return
        except (StopIteration, grpc.RpcError):
            return  # the client was gone before it said what it wanted
        self._ack_deadline = first.stream_ack_deadline_seconds
        if not self._context.add_callback(subscription.wake):
            return
        threading.Thread(
            target=self._deliver,
            args=(subscription, first.max_outstanding_messages),
            name="pubsub-server-stream-sender",
            daemon=True,
        ).start()
        self._apply(subscription, first)
        try:
            for request in self._requests:
                self._apply(subscription, request)
        except grpc.RpcError:
            pass  # cancelled, which is how the official client ends a stream

    def _apply(self, subscription: Subscription, request: Any) -> None:
        if request.stream_ack_deadline_seconds:
            self._ack_deadline = request.stream_ack_deadline_seconds
        subscription.acknowledge(request.ack_ids)
        for ack_id, seconds in zip(
            request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=False
        ):
            subscription.modify_ack_deadline([ack_id], seconds)

    def _deliver(self, subscription: Subscription, max_outstanding: int) -> None:
        while True:
            deliveries = subscription.take(
                self,
                max_messages=_MESSAGES_PER_RESPONSE,
                max_outstanding=max_outstanding,
                ack_deadline=self._ack_deadline,
                cancelled=lambda: not self._context.is_active(),
            )
            if not deliveries:
                break
            self._send(_StreamingPullResponse(received_messages=_received(deliveries)))
        if self._context.is_active():
            _fail(
                self._context,
                self._send,
                StatusError(grpc.StatusCode.NOT_FOUND, "the subscription was deleted"),
            )


def _received(deliveries: list[Delivery]) -> list[Any]:
    return [_ReceivedMessage(ack_id=d.ack_id, message=d.message) for d in deliveries]


def _fail(context: grpc.ServicerContext, send: _Send, error: StatusError) -> None:
    context.set_code(error.code)
    context.set_details(error.details)
    send(None)
