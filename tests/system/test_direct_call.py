"""Calls on gRPC's core beside grpcio's own futures: the same answers, errors and ends."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.pubsub_v1 import types

from hedged_pubsub._google.direct_call import DirectCall, direct_start
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from .conftest import TOPIC, wait_until

METHOD = "/google.pubsub.v1.Publisher/Publish"
METADATA = [("x-goog-request-params", "topic=t")]
READ = types.PublishResponse.pb().FromString


@pytest.fixture
def channel(server: PubSubServer) -> Iterator[grpc.Channel]:
    """An ordinary channel to the server."""
    with grpc.insecure_channel(server.address) as channel:
        yield channel


def multicallable(channel: grpc.Channel, read: Any = READ) -> Any:
    """Make the method as the publisher does."""
    return channel.unary_unary(METHOD, response_deserializer=read)


def request(topic: str) -> bytes:
    """Serialize a request of one message."""
    messages = [types.PubsubMessage(data=b"x")]
    made: bytes = types.PublishRequest.serialize(
        types.PublishRequest(topic=topic, messages=messages)
    )
    return made


def listen(call: Any, callback: Callable[[Any], object]) -> None:
    """Add a callback to a call of either kind."""
    if isinstance(call, DirectCall):
        call.when_ended(lambda _batch, _attempt, call: callback(call), None, 0)
    else:
        call.add_done_callback(callback)


def ended(start: Any, body: bytes, timeout: float | None = 10) -> Any:
    """Start a call, wait for its callback, and return it."""
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    call = start(body, timeout, metadata=METADATA)
    listen(call, calls.put)
    assert calls.get(timeout=20) is call
    return call


def error_of(call: Any) -> grpc.RpcError:
    """Return what a call failed with."""
    with pytest.raises(grpc.RpcError) as raised:
        call.result()
    return raised.value


def facts(error: Any) -> tuple[Any, ...]:
    """Return all that a program can see of an error."""
    seen = exceptions.from_grpc_error(error)
    trailing = [(entry.key, entry.value) for entry in error.trailing_metadata() or ()]
    return (error.code(), error.details(), trailing, type(seen), seen.message, seen.details)


def both(channel: grpc.Channel, body: bytes, timeout: float | None = 10, **read: Any) -> list[Any]:
    """Make the same call in both ways."""
    method = multicallable(channel, **read)
    return [ended(start, body, timeout) for start in (direct_start(method), method.future)]


def test_an_answer(server: PubSubServer, channel: grpc.Channel) -> None:
    """Both are answered, and sent the same headers; the fast way is taken with this grpcio."""
    calls = both(channel, request(TOPIC))
    assert [isinstance(call, DirectCall) for call in calls] == [True, False]
    for call in calls:
        assert len(call.result().message_ids) == 1
    first, second = (attempt.metadata for attempt in server.attempts(TOPIC))
    assert first == second


def test_an_error_of_the_server(server: PubSubServer, channel: grpc.Channel) -> None:
    """Code, details and trailing metadata are the same, and make the same exception."""
    server.set_script(FaultScript(faults=[Status("RESOURCE_EXHAUSTED")]))
    direct, future = both(channel, request(TOPIC))
    first, second = (repr(facts(error_of(call))) for call in (direct, future))
    assert first == second.replace("call 2", "call 1")  # the server counts them
    assert error_of(direct).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_errors_of_grpcs_own(server: PubSubServer, channel: grpc.Channel) -> None:
    """Both end when their timeout is over, and nobody listens is unavailable for both."""
    server.set_script(FaultScript(faults=[Stall(5)]))
    direct, future = both(channel, request(TOPIC), timeout=0.2)
    assert facts(error_of(direct))[:2] == facts(error_of(future))[:2]
    assert error_of(direct).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    with grpc.insecure_channel("127.0.0.1:1") as refused:
        codes = {error_of(call).code() for call in both(refused, b"")}
    assert codes == {grpc.StatusCode.UNAVAILABLE}


def test_an_answer_that_cannot_be_read(channel: grpc.Channel) -> None:
    """That is an internal error for both, not an exception on gRPC's thread."""

    def refuse(_answer: bytes) -> None:
        raise ValueError

    direct, future = both(channel, request(TOPIC), read=refuse)
    assert facts(error_of(direct)) == facts(error_of(future))
    assert error_of(direct).code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_cancelling(server: PubSubServer, end: str) -> None:
    """A cancelled call ends at once, as when its channel is closed; again it does nothing."""
    server.set_script(FaultScript(faults=[Stall(60)]))
    channel = grpc.insecure_channel(server.address)
    call = direct_start(multicallable(channel))(request(TOPIC), 30, metadata=METADATA)
    done = threading.Event()
    listen(call, lambda _call: done.set())
    for _ in range(2):
        call.cancel() if end == "cancel" else channel.close()
    assert done.wait(5)
    assert error_of(call).code() is grpc.StatusCode.CANCELLED
    call.cancel()
    channel.close()


def test_a_callback_that_comes_after_the_end(channel: grpc.Channel) -> None:
    """It is called at once, on the thread that adds it."""
    call = direct_start(multicallable(channel))(request(TOPIC), 10, metadata=METADATA)
    wait_until(lambda: call._ended)
    threads: list[threading.Thread] = []
    listen(call, lambda _call: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_a_closed_channel(channel: grpc.Channel) -> None:
    """Both refuse to start."""
    method = multicallable(channel)
    channel.close()
    for start in (direct_start(method), method.future):
        with pytest.raises(ValueError, match="closed"):
            start(request(TOPIC), 10, metadata=METADATA)


def test_compression_is_left_to_grpcio(channel: grpc.Channel) -> None:
    """Its metadata is grpcio's to write, so such a call is one of grpcio's."""
    start = direct_start(multicallable(channel))
    call = start(request(TOPIC), 10, metadata=METADATA, compression=grpc.Compression.Gzip)
    assert not isinstance(call, DirectCall)
    assert call.result().message_ids


def test_a_grpcio_that_is_not_known(channel: grpc.Channel) -> None:
    """Other parameters, or another kind of method: the public way."""
    method = multicallable(channel)
    assert direct_start(method) != method.future
    known = method._managed_call

    def changed(flags: int, method: bytes, *rest: Any) -> Any:
        return known(flags, method, *rest)

    method._managed_call = changed
    assert direct_start(method) == method.future
