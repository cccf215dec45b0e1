"""The methods of the two services, all but Publish.

Those that wait for messages have threads of their own, a Pull one and a StreamingPull two. gRPC's
workers are left to the Publish calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf import duration_pb2, empty_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2

from hedged_pubsub.testing.broker import Broker, Delivery, StatusError, invalid

_DEFAULT_PAGE_SIZE: Final = 100

_PullResponse = types.PullResponse.pb()
_StreamingPullResponse = types.StreamingPullResponse.pb()
_ReceivedMessage = types.ReceivedMessage.pb()

# How long a Pull waits for the first message before it answers with none, if the client's deadline
# allows; the answer must be on its way before that deadline.
_PULL_SECONDS: Final = 10.0
_PULL_MARGIN: Final = 0.1

# A response stays well below the 4 MB that a client accepts by default, if messages are small.
_MESSAGES_PER_RESPONSE: Final = 100

_Send = Callable[[Any], None]


def handlers(broker: Broker, publish: grpc.RpcMethodHandler) -> list[grpc.GenericRpcHandler]:
    """Return the two services."""
    publisher = {"Publish": publish, **_publisher_methods(broker)}
    return [
        grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
        grpc.method_handlers_generic_handler(
            "google.pubsub.v1.Subscriber", _subscriber_methods(broker)
        ),
    ]


def _publisher_methods(broker: Broker) -> dict[str, grpc.RpcMethodHandler]:

    def list_topic_subscriptions(r: Any) -> dict[str, Any]:
        return _page(r, "subscriptions", [s.name for s in broker.subscriptions(topic=r.topic)])

    return _methods(
        CreateTopic=(types.Topic, broker.create_topic),
        GetTopic=(types.Topic, lambda r: broker.topic(r.topic)),
        ListTopics=(
            types.ListTopicsResponse,
            lambda r: _page(r, "topics", broker.topics(r.project)),
        ),
        UpdateTopic=(types.Topic, lambda r: broker.update_topic(r.topic, r.update_mask)),
        DeleteTopic=(None, lambda r: broker.delete_topic(r.topic)),
        ListTopicSubscriptions=(types.ListTopicSubscriptionsResponse, list_topic_subscriptions),
    )


def _subscriber_methods(broker: Broker) -> dict[str, grpc.RpcMethodHandler]:
    def list_subscriptions(r: Any) -> dict[str, Any]:
        return _page(r, "subscriptions", broker.subscriptions(project=r.project))

    def modify_ack_deadline(r: Any) -> None:
        found = broker.subscription(r.subscription)
        found.modify_ack_deadline(r.ack_ids, r.ack_deadline_seconds)

    plain = _methods(
        CreateSubscription=(types.Subscription, broker.create_subscription),
        GetSubscription=(types.Subscription, lambda r: broker.subscription(r.subscription).proto),
        ListSubscriptions=(types.ListSubscriptionsResponse, list_subscriptions),
        DeleteSubscription=(None, lambda r: broker.delete_subscription(r.subscription)),
        Acknowledge=(None, lambda r: broker.subscription(r.subscription).acknowledge(r.ack_ids)),
        ModifyAckDeadline=(None, modify_ack_deadline),
    )
    return {
        **plain,
        "Pull": grpc.unary_stream_rpc_method_handler(
            answers_later(partial(_start_thread, "pull", _pull, broker)),
            request_deserializer=types.PullRequest.pb().FromString,
            response_serializer=_PullResponse.SerializeToString,
        ),
        "StreamingPull": grpc.stream_stream_rpc_method_handler(
            answers_later(partial(_start_thread, "stream", _streaming_pull, broker)),
            request_deserializer=types.StreamingPullRequest.pb().FromString,
            response_serializer=_StreamingPullResponse.SerializeToString,
        ),
    }


def answers_later(method: Callable[..., object]) -> Any:
    """Mark a method as one that gets a callback to answer with, from any thread, as gRPC does."""
    method.experimental_non_blocking = True  # type: ignore[attr-defined]
    return method


def fail(context: grpc.ServicerContext, send: Callable[[None], Any], error: StatusError) -> None:
    """End a call that is answered by ``send`` with the error's status."""
    context.set_code(error.code)
    context.set_details(error.details)
    if error.retry_after is not None:
        context.set_trailing_metadata((("grpc-status-details-bin", _with_retry_info(error)),))
    send(None)


def _with_retry_info(error: StatusError) -> bytes:
    nanos = round((error.retry_after or 0.0) * 1e9)
    status = status_pb2.Status(code=error.code.value[0], message=error.details)
    delay = duration_pb2.Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    serialized: bytes = status.SerializeToString()
    return serialized


def _methods(**rows: tuple[Any, Callable[[Any], Any]]) -> dict[str, grpc.RpcMethodHandler]:
    """Make methods of response types (None: empty) and functions from request to response."""
    return {name: _unary(name, *row) for name, row in rows.items()}


def _unary(name: str, response_type: Any, answer: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
    response = response_type.pb() if response_type else empty_pb2.Empty

    def call(message: Any, context: grpc.ServicerContext) -> Any:
        try:
            answered = answer(message)
        except StatusError as error:
            context.abort(error.code, error.details)
        return response(**answered) if isinstance(answered, dict) else answered or response()

    # What creates something takes what it returns; the others have requests of their own.
    wrapper = getattr(types, f"{name}Request", None)
    request = wrapper.pb() if wrapper else response
    return grpc.unary_unary_rpc_method_handler(
        call,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )


def _page(request: Any, name: str, found: list[Any]) -> dict[str, Any]:
    """Return a response's fields: the page of what was found, and the token of the next one."""
    token = request.page_token
    if token and not token.isdecimal():
        raise invalid(f"page_token={token!r} is not from this server")
    start = int(token or 0)
    end = start + (request.page_size if request.page_size > 0 else _DEFAULT_PAGE_SIZE)
    return {name: found[start:end], "next_page_token": str(end) if end < len(found) else ""}


def _pull(broker: Broker, request: Any, context: grpc.ServicerContext, send: _Send) -> None:
    try:
        subscription = broker.subscription(request.subscription)
        if request.max_messages < 1:
            raise invalid(f"max_messages={request.max_messages} must be at least 1")
    except StatusError as error:
        fail(context, send, error)
        return
    if context.add_callback(subscription.wake):
        remaining = context.time_remaining()
        wait = _PULL_SECONDS if remaining is None else min(remaining, _PULL_SECONDS)
        deliveries = subscription.take(
            context,
            max_messages=request.max_messages,
            timeout=0.0 if request.return_immediately else max(wait - _PULL_MARGIN, _PULL_MARGIN),
            cancelled=lambda: not context.is_active(),
        )
        send(_PullResponse(received_messages=_received(deliveries)))
        send(None)


def _streaming_pull(
    broker: Broker, requests: Iterator[Any], context: grpc.ServicerContext, send: _Send
) -> None:
    """Read requests until the client closes or cancels the stream; send from another thread."""
    ack_deadline = 0

    def apply(request: Any) -> None:
        nonlocal ack_deadline
        ack_deadline = request.stream_ack_deadline_seconds or ack_deadline
        subscription.acknowledge(request.ack_ids)
        for ack_id, seconds in zip(
            request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=False
        ):
            subscription.modify_ack_deadline([ack_id], seconds)

    def deliver(max_outstanding: int) -> None:
        while deliveries := subscription.take(
            context,
            max_messages=_MESSAGES_PER_RESPONSE,
            max_outstanding=max_outstanding,
            ack_deadline=ack_deadline,
            cancelled=lambda: not context.is_active(),
        ):
            send(_StreamingPullResponse(received_messages=_received(deliveries)))
        if context.is_active():
            deleted = StatusError(grpc.StatusCode.NOT_FOUND, "the subscription was deleted")
            fail(context, send, deleted)

    try:
        first = next(requests)
        subscription = broker.subscription(first.subscription)
        if context.add_callback(subscription.wake):
            apply(first)
            _start_thread("stream-sender", deliver, first.max_outstanding_messages)
            for request in requests:
                apply(request)
    except StatusError as error:
        fail(context, send, error)
    except (StopIteration, grpc.RpcError):
        pass  # the client has gone; cancelling is how the official client ends a stream


def _start_thread(name: str, target: Callable[..., object], *args: object) -> None:
    threading.Thread(target=target, args=args, name=f"pubsub-server-{name}", daemon=True).start()


def _received(deliveries: list[Delivery]) -> list[Any]:
    return [_ReceivedMessage(ack_id=d.ack_id, message=d.message) for d in deliveries]
