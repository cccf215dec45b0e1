"""Contracts: what this package touches of the official client's private parts is as it expects.

These run at the lowest and the newest supported releases.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.api_core.timeout import ConstantTimeout, ExponentialTimeout, TimeToDeadlineTimeout
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.publisher.flow_controller import FlowController
from google.cloud.pubsub_v1.types import LimitExceededBehavior, PublishFlowControl
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher
from hedged_pubsub._official import (
    FlowControl,
    call_arguments,
    connect,
    is_plain_channel,
    nominal_timeout,
    publish_defaults,
    retry_parts,
)

_TOPIC = "projects/test/topics/a topic"


@pytest.fixture
def transport() -> Iterator[PublisherGrpcTransport]:
    """Make a transport to nowhere."""
    made = PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1"))
    yield made
    made.close()


def test_retry_parts() -> None:
    """A retry has the parts that are interpreted."""
    heard: list[Exception] = []
    parts = retry_parts(
        Retry(lambda error: error is None, initial=1, maximum=4, timeout=9, on_error=heard.append)
    )
    assert parts.predicate(None) is True  # type: ignore[arg-type]
    assert parts.timeout == 9
    assert parts.on_error == heard.append
    waits = parts.backoffs()
    for limit in (1, 2, 4, 4):
        assert 0 <= waits(exceptions.ServiceUnavailable("down")) <= limit
    assert retry_parts(Retry(timeout=None)).timeout is None


def test_nominal_timeout() -> None:
    """The number that a timeout was made with is found, where there is one."""
    assert nominal_timeout(ConstantTimeout(7)) == 7
    assert nominal_timeout(ConstantTimeout(None)) is None
    assert nominal_timeout(TimeToDeadlineTimeout(8)) == 8
    assert nominal_timeout(ExponentialTimeout()) is None


def test_publish_defaults(transport: PublisherGrpcTransport) -> None:
    """The generated method's defaults are found, and are what the documentation says."""
    retry, timeout = publish_defaults(transport)
    assert retry is not None
    parts = retry_parts(retry)
    assert timeout == 60
    assert parts.timeout == 600
    assert parts.predicate(exceptions.ServiceUnavailable("down"))
    assert parts.predicate(exceptions.Cancelled("by the server"))
    assert not parts.predicate(exceptions.PermissionDenied("no"))


def test_call_arguments(transport: PublisherGrpcTransport) -> None:
    """The metadata is that of the official client, with the topic percent-encoded."""
    arguments = dict(call_arguments(transport, _TOPIC))
    metadata = dict(arguments.pop("metadata"))
    assert arguments == {}
    assert metadata.pop("x-goog-request-params") == "topic=projects/test/topics/a+topic"
    assert metadata.pop("x-goog-api-client").startswith("gl-python/")
    assert metadata == {}


def test_asking_for_the_arguments_sends_nothing(transport: PublisherGrpcTransport) -> None:
    """The client's own method is untouched by the look at its arguments."""
    method = transport._wrapped_methods[transport.publish]
    before = dict(vars(method))
    call_arguments(transport, _TOPIC)
    assert vars(method) == before
    with pytest.raises(exceptions.ServiceUnavailable):
        method({"topic": _TOPIC}, retry=None, timeout=1.0)


def test_interceptors_are_noticed(transport: PublisherGrpcTransport) -> None:
    """A channel with an interceptor is told from one without."""

    class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            return continuation(details, request)

    assert is_plain_channel(transport.grpc_channel)
    assert not is_plain_channel(grpc.intercept_channel(transport.grpc_channel, Interceptor()))


def flow_control(behavior: LimitExceededBehavior) -> FlowControl:
    """Make flow control for two messages or 100 bytes."""
    return FlowControl(
        FlowController(
            PublishFlowControl(message_limit=2, byte_limit=100, limit_exceeded_behavior=behavior)
        )
    )


def test_flow_control_counts_messages_and_bytes() -> None:
    """Credit is lent up to both limits, and lent again when it came back."""
    control = flow_control(LimitExceededBehavior.ERROR)
    assert control.counts
    control.borrow(10)
    control.borrow(10)
    with pytest.raises(FlowControlLimitError, match="messages: 3 / 2"):
        control.borrow(10)
    control.give_back(10)
    with pytest.raises(FlowControlLimitError, match="bytes: 101 / 100"):
        control.borrow(91)
    control.borrow(90)


def test_flow_control_refuses_what_would_wait_for_ever() -> None:
    """A message above the limit by itself is refused, even where the others wait."""
    with pytest.raises(FlowControlLimitError, match="block forever"):
        flow_control(LimitExceededBehavior.BLOCK).borrow(101)


def test_who_stops_waiting_for_credit_leaves_no_reservation() -> None:
    """The official controller's queue is as this package expects, and can be left."""
    control = flow_control(LimitExceededBehavior.BLOCK)
    control.borrow(10)
    control.borrow(10)
    controller = control._controller

    class Interrupted(BaseException):
        pass

    def interrupt() -> None:
        control.give_back(10)  # which reserves a slot for the one that waits
        raise Interrupted

    controller._has_capacity.wait = lambda: interrupt()
    controller._operational_lock = threading.RLock()  # the interruption comes on this very thread
    controller._has_capacity._lock = controller._operational_lock
    controller._has_capacity.notify_all = lambda: None
    with pytest.raises(Interrupted):
        control.borrow(10)
    assert not controller._waiting
    assert (controller._reserved_slots, controller._reserved_bytes) == (0, 0)
    assert controller._message_count == 1


def test_flow_control_that_is_ignored_does_not_count() -> None:
    """By default there is nothing to lend or to give back."""
    assert not flow_control(LimitExceededBehavior.IGNORE).counts


def test_the_publish_signature_is_the_official_one() -> None:
    """Positional arguments mean the same."""
    official = inspect.signature(pubsub_v1.PublisherClient.publish).parameters
    ours = inspect.signature(HedgedPublisher.publish).parameters
    assert list(ours) == list(official)
    for name in official:
        assert ours[name].kind == official[name].kind
        assert ours[name].default == official[name].default


@pytest.mark.parametrize("intercepted", [False, True])
def test_connecting_without_a_call(intercepted: bool) -> None:
    """A channel connects, and says so; one that cannot, or was closed, is not connected."""

    class Nothing(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            return continuation(details, request)

    def channel_to(port: int) -> grpc.Channel:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        return grpc.intercept_channel(channel, Nothing()) if intercepted else channel

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = channel_to(port)
    polls = threading.Event()
    for _ in range(500):
        if connect(channel):
            break
        polls.wait(0.01)
    assert connect(channel)
    channel.close()
    assert not connect(channel)
    server.stop(None).wait()
    nowhere = channel_to(port)
    assert not any(connect(nowhere) or polls.wait(0.01) for _ in range(20))
    nowhere.close()
