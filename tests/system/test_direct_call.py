"""Calls on gRPC's core beside grpcio's own futures: the same answers, errors and ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.pubsub_v1 import types

from hedged_pubsub._rpc import METHOD
from hedged_pubsub._sync.direct_call import DirectCall, direct_start
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

METADATA = [("x-goog-request-params", "topic=t")]


@pytest.fixture
def channel(server: PubSubServer) -> Iterator[grpc.Channel]:
    """An ordinary channel to the server."""
    with grpc.insecure_channel(server.address) as channel:
        yield channel


def multicallable(channel: grpc.Channel) -> Any:
    """Make the method as the publisher does."""
    return channel.unary_unary(METHOD, response_deserializer=types.PublishResponse.pb().FromString)


def request(topic: str, data: bytes = b"x") -> bytes:
    """Serialize a request of one message."""
    message = types.PubsubMessage(data=data)
    made: bytes = types.PublishRequest.serialize(
        types.PublishRequest(topic=topic, messages=[message])
    )
    return made


def ended(start: Any, body: bytes, timeout: float | None = 10) -> Any:
    """Start a call, wait for its callback, and return it."""
    done = threading.Event()
    calls: list[Any] = []

    def callback(call: Any) -> None:
        calls.append(call)
        done.set()

    call = start(body, timeout, metadata=METADATA)
    call.add_done_callback(callback)
    assert done.wait(20)
    assert calls == [call]
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


def both(channel: grpc.Channel, body: bytes, timeout: float | None = 10) -> tuple[Any, Any]:
    """Make the same call in both ways."""
    method = multicallable(channel)
    return ended(direct_start(method), body, timeout), ended(method.future, body, timeout)


def test_this_grpcio_is_known(channel: grpc.Channel, topic: str) -> None:
    """The fast way is taken with the grpcio that is installed; else it is slower in silence."""
    assert isinstance(ended(direct_start(multicallable(channel)), request(topic)), DirectCall)


def test_an_answer(server: PubSubServer, channel: grpc.Channel, topic: str) -> None:
    """Both are answered, and sent the same headers."""
    for call in both(channel, request(topic)):
        assert len(call.result().message_ids) == 1
    first, second = (attempt.metadata for attempt in server.attempts(topic))
    assert first == second


def test_an_error_of_the_server(server: PubSubServer, channel: grpc.Channel, topic: str) -> None:
    """Code, details and trailing metadata are the same, and make the same exception."""
    server.set_script(FaultScript(faults=[Status("RESOURCE_EXHAUSTED")]))
    direct, future = both(channel, request(topic))
    first, second = (repr(facts(error_of(call))) for call in (direct, future))
    assert first == second.replace("call 2", "call 1")  # the server counts them
    assert error_of(direct).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_deadline(server: PubSubServer, channel: grpc.Channel, topic: str) -> None:
    """Both end when their timeout is over."""
    server.set_script(FaultScript(faults=[Stall(5)]))
    direct, future = both(channel, request(topic), timeout=0.2)
    assert facts(error_of(direct))[:2] == facts(error_of(future))[:2]
    assert error_of(direct).code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_nobody_listens() -> None:
    """A refused connection is unavailable for both."""
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        direct, future = both(channel, b"")
        codes = {error_of(direct).code(), error_of(future).code()}
    assert codes == {grpc.StatusCode.UNAVAILABLE}


def test_an_answer_that_cannot_be_read(channel: grpc.Channel, topic: str) -> None:
    """That is an internal error for both, not an exception on gRPC's thread."""

    def refuse(_answer: bytes) -> None:
        raise ValueError

    method = channel.unary_unary(METHOD, response_deserializer=refuse)
    direct = ended(direct_start(method), request(topic))
    future = ended(method.future, request(topic))
    assert facts(error_of(direct)) == facts(error_of(future))
    assert error_of(direct).code() is grpc.StatusCode.INTERNAL


def test_cancelling(server: PubSubServer, channel: grpc.Channel, topic: str) -> None:
    """A cancelled call ends at once; cancelling again, or after the end, does nothing."""
    server.set_script(FaultScript(faults=[Stall(5)]))
    call = direct_start(multicallable(channel))(request(topic), 10, metadata=METADATA)
    done = threading.Event()
    call.add_done_callback(lambda _call: done.set())
    start = time.monotonic()
    call.cancel()
    call.cancel()
    assert done.wait(2)
    assert time.monotonic() - start < 1
    assert error_of(call).code() is grpc.StatusCode.CANCELLED
    call.cancel()


def test_a_callback_that_comes_after_the_end(channel: grpc.Channel, topic: str) -> None:
    """It is called at once, on the thread that adds it."""
    call = direct_start(multicallable(channel))(request(topic), 10, metadata=METADATA)
    deadline = time.monotonic() + 5
    while not call._first.locked() and time.monotonic() < deadline:
        time.sleep(0.01)
    threads: list[threading.Thread] = []
    call.add_done_callback(lambda _call: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]


def test_a_closed_channel(channel: grpc.Channel, topic: str) -> None:
    """Both refuse to start."""
    method = multicallable(channel)
    channel.close()
    for start in (direct_start(method), method.future):
        with pytest.raises(ValueError, match="closed"):
            start(request(topic), 10, metadata=METADATA)


def test_closing_ends_calls(server: PubSubServer, topic: str) -> None:
    """A call under way ends when its channel is closed."""
    server.set_script(FaultScript(faults=[Stall(5)]))
    channel = grpc.insecure_channel(server.address)
    call = direct_start(multicallable(channel))(request(topic), 10, metadata=METADATA)
    done = threading.Event()
    call.add_done_callback(lambda _call: done.set())
    channel.close()
    assert done.wait(2)
    assert error_of(call).code() is grpc.StatusCode.CANCELLED


def test_compression_is_left_to_grpcio(channel: grpc.Channel, topic: str) -> None:
    """Its metadata is grpcio's to write, so such a call is one of grpcio's."""
    start = direct_start(multicallable(channel))
    call = start(request(topic), 10, metadata=METADATA, compression=grpc.Compression.Gzip)
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
