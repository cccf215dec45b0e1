"""The methods of the two services, all but Publish.

They run on the server's thread, as Publish does. Pull and StreamingPull, which wait for messages,
have a thread each for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf import duration_pb2, empty_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2

from hedged_pubsub._google.core_server import Handler, ServerCall
from hedged_pubsub.testing.broker import Broker, Delivery, StatusError, Subscription, invalid

_DEFAULT_PAGE_SIZE: Final = 100

# How long a Pull waits for the first message before it answers with none, if the client's deadline
# allows; the answer must be on its way before that deadline.
_PULL_SECONDS: Final = 10.0
_PULL_MARGIN: Final = 0.1

# A response stays well below the 4 MB that a client accepts by default, if messages are small.
_MESSAGES_PER_RESPONSE: Final = 100


def handlers(broker: Broker, publish: Handler) -> dict[str, Handler]:
    """Return the methods of the two services by their full names."""

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
    subscriber["Pull"] = partial(_pull, broker)
    subscriber["StreamingPull"] = partial(_streaming_pull, broker)
    return {
        f"/google.pubsub.v1.{service}/{name}": handler
        for service, methods in (("Publisher", publisher), ("Subscriber", subscriber))
        for name, handler in methods.items()
    }


def fail(call: ServerCall, error: StatusError) -> None:
    """End a call with the error's status."""
    trailing = None
    if error.retry_after is not None:
        trailing = (("grpc-status-details-bin", _with_retry_info(error)),)
    call.end(error.code, error.details, trailing_metadata=trailing)


def _with_retry_info(error: StatusError) -> bytes:
    nanos = round((error.retry_after or 0.0) * 1e9)
    status = status_pb2.Status(code=error.code.value[0], message=error.details)
    delay = duration_pb2.Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    serialized: bytes = status.SerializeToString()
    return serialized


def _methods(**rows: Callable[[Any], Any]) -> dict[str, Handler]:
    return {name: _unary(name, answer) for name, answer in rows.items()}


def _unary(name: str, answer: Callable[[Any], Any]) -> Handler:
    """Make a method of a function that returns the response, the fields of a list's, or None."""
    # What creates something takes what it returns; the others have requests of their own.
    request = getattr(types, f"{name}Request", None) or getattr(types, name.removeprefix("Create"))

    def handle(call: ServerCall, message: bytes) -> None:
        try:
            answered = answer(request.pb().FromString(message)) or empty_pb2.Empty()
        except StatusError as error:
            fail(call, error)
            return
        if isinstance(answered, dict):
            answered = getattr(types, f"{name}Response").pb()(**answered)
        call.end(message=answered.SerializeToString())

    return handle


def _page(request: Any, **found: list[Any]) -> dict[str, Any]:
    """Return a response's fields: the page of what was found, and the token of the next one."""
    ((name, rows),) = found.items()
    token = request.page_token
    if token and not token.isdecimal():
        raise invalid(f"page_token={token!r} is not from this server")
    start = int(token or 0)
    end = start + (request.page_size if request.page_size > 0 else _DEFAULT_PAGE_SIZE)
    return {name: rows[start:end], "next_page_token": str(end) if end < len(rows) else ""}


def _pull(broker: Broker, call: ServerCall, message: bytes) -> None:
    request = types.PullRequest.pb().FromString(message)
    try:
        subscription = broker.subscription(request.subscription)
        if request.max_messages < 1:
            raise invalid(f"max_messages={request.max_messages} must be at least 1")
    except StatusError as error:
        fail(call, error)
        return
    call.when_over = subscription.wake
    wait = min(call.time_remaining(), _PULL_SECONDS) - _PULL_MARGIN
    timeout = 0.0 if request.return_immediately else max(wait, _PULL_MARGIN)

    def deliver() -> None:
        deliveries = subscription.take(
            call,
            max_messages=request.max_messages,
            timeout=timeout,
            cancelled=lambda: call.is_over,
        )
        call.end(message=_received(types.PullResponse, deliveries))

    _start_thread("pull", deliver)


def _streaming_pull(broker: Broker, call: ServerCall, message: bytes) -> None:
    """Take requests until the client ends the stream; send from another thread."""
    request = types.StreamingPullRequest.pb().FromString
    first = request(message)
    try:
        subscription = broker.subscription(first.subscription)
    except StatusError as error:
        fail(call, error)
        return
    call.when_over = subscription.wake
    ack_deadline = 0

    def apply(request: Any) -> None:
        nonlocal ack_deadline
        ack_deadline = request.stream_ack_deadline_seconds or ack_deadline
        subscription.acknowledge(request.ack_ids)
        for ack_id, seconds in zip(
            request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=False
        ):
            subscription.modify_ack_deadline([ack_id], seconds)
        call.receive(next_request)

    def next_request(message: bytes | None) -> None:
        if message is not None:  # otherwise nothing more is sent, or the client has gone
            apply(request(message))

    def deliver() -> None:
        while deliveries := subscription.take(
            call,
            max_messages=_MESSAGES_PER_RESPONSE,
            max_outstanding=first.max_outstanding_messages,
            ack_deadline=ack_deadline,
            cancelled=lambda: call.is_over,
        ):
            call.send(_received(types.StreamingPullResponse, deliveries))
        if not call.is_over:
            fail(call, StatusError(grpc.StatusCode.NOT_FOUND, "the subscription was deleted"))

    apply(first)
    _start_thread("stream-sender", deliver)


def _start_thread(name: str, target: Callable[[], object]) -> None:
    threading.Thread(target=target, name=f"pubsub-server-{name}", daemon=True).start()


def _received(response: Any, deliveries: list[Delivery]) -> bytes:
    received = [{"ack_id": d.ack_id, "message": d.message} for d in deliveries]
    serialized: bytes = response.pb()(received_messages=received).SerializeToString()
    return serialized
