"""The methods of the two services, all but Publish.

Those that wait for messages have threads of their own, a Pull one and a StreamingPull two. gRPC's
workers are left to the Publish calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import Any, Final

import grpc
from google.protobuf import duration_pb2, empty_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2

from hedged_pubsub.testing.broker import Broker, Delivery, StatusError, Subscription, invalid

_DEFAULT_PAGE_SIZE: Final = 100

_SERIALIZE: Final = methodcaller("SerializeToString")

# How long a Pull waits for the first message before it answers with none, if the client's deadline
# allows; the answer must be on its way before that deadline.
_PULL_SECONDS: Final = 10.0
_PULL_MARGIN: Final = 0.1

# A response stays well below the 4 MB that a client accepts by default, if messages are small.
_MESSAGES_PER_RESPONSE: Final = 100

_Send = Callable[[Any], None]


def handlers(broker: Broker, publish: grpc.RpcMethodHandler) -> list[grpc.GenericRpcHandler]:
    """Return the two services."""

    def found(r: Any) -> Subscription:
        return broker.subscription(r.subscription)

    publisher = _methods(
        CreateTopic=broker.create_topic,
        GetTopic=lambda r: broker.topic(r.topic),
        ListTopics=lambda r: _page(r, topics=broker.topics(r.project)),
        UpdateTopic=lambda r: broker.update_topic(r.topic, r.update_mask),
        DeleteTopic=lambda r: broker.delete_topic(r.topic),
        ListTopicSubscriptions=lambda r: _page(
            r, subscriptions=[s.name for s in broker.subscriptions(topic=r.topic)]
        ),
    )
    publisher["Publish"] = publish
    subscriber = _methods(
        CreateSubscription=broker.create_subscription,
        GetSubscription=lambda r: found(r).proto,
        ListSubscriptions=lambda r: _page(r, subscriptions=broker.subscriptions(project=r.project)),
        DeleteSubscription=lambda r: broker.delete_subscription(r.subscription),
        Acknowledge=lambda r: found(r).acknowledge(r.ack_ids),
        ModifyAckDeadline=lambda r: found(r).modify_ack_deadline(r.ack_ids, r.ack_deadline_seconds),
    )
    for name, make, method in (
        ("Pull", grpc.unary_stream_rpc_method_handler, _pull),
        ("StreamingPull", grpc.stream_stream_rpc_method_handler, _streaming_pull),
    ):
        subscriber[name] = make(
            answers_later(partial(_start_thread, name, method, broker)),
            request_deserializer=getattr(types, f"{name}Request").pb().FromString,
            response_serializer=_SERIALIZE,
        )
    return [
        grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", publisher),
        grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
    ]


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


def _methods(**rows: Callable[[Any], Any]) -> dict[str, grpc.RpcMethodHandler]:
    return {name: _unary(name, answer) for name, answer in rows.items()}


def _unary(name: str, answer: Callable[[Any], Any]) -> grpc.RpcMethodHandler:
    """Make a method of a function that returns the response, the fields of a list's, or None."""
    # What creates something takes what it returns; the others have requests of their own.
    request = getattr(types, f"{name}Request", None) or getattr(types, name.removeprefix("Create"))

    def call(message: Any, context: grpc.ServicerContext) -> Any:
        try:
            answered = answer(message) or empty_pb2.Empty()
        except StatusError as error:
            context.abort(error.code, error.details)
        if isinstance(answered, dict):
            return getattr(types, f"{name}Response").pb()(**answered)
        return answered

    return grpc.unary_unary_rpc_method_handler(
        call, request_deserializer=request.pb().FromString, response_serializer=_SERIALIZE
    )


def _page(request: Any, **found: list[Any]) -> dict[str, Any]:
    """Return a response's fields: the page of what was found, and the token of the next one."""
    ((name, rows),) = found.items()
    token = request.page_token
    if token and not token.isdecimal():
        raise invalid(f"page_token={token!r} is not from this server")
    start = int(token or 0)
    end = start + (request.page_size if request.page_size > 0 else _DEFAULT_PAGE_SIZE)
    return {name: rows[start:end], "next_page_token": str(end) if end < len(rows) else ""}


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
        send(_received(types.PullResponse, deliveries))
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
            send(_received(types.StreamingPullResponse, deliveries))
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


def _received(response: Any, deliveries: list[Delivery]) -> Any:
    received = [{"ack_id": d.ack_id, "message": d.message} for d in deliveries]
    return response.pb()(received_messages=received)
