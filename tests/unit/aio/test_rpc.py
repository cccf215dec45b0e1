"""What is touched of the private parts of the asyncio transport; runs at all supported releases."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport

from hedged_pubsub._core.connections import Connection
from hedged_pubsub._google.method import AsyncPublishMethod

from ..fakes import FakeBatch, fail_to_log, handled, refuse
from .fakes import FakeRpc
from .virtual_loop import VirtualLoop, turns


class Interceptor(grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(details, request)


@pytest.mark.parametrize("intercepted", [False, True])
async def test_the_official_logging_is_passed_by(intercepted: bool) -> None:
    """Of the interceptors only the user's are left; with none of those requests are plain bytes."""
    the_users = [Interceptor()] if intercepted else []
    channel = grpc.aio.insecure_channel("127.0.0.1:1", interceptors=list(the_users))
    transport = PublisherGrpcAsyncIOTransport(channel=channel)
    on_channel = list(channel._unary_unary_interceptors)
    method = AsyncPublishMethod(transport, with_telemetry=True)
    assert method.multicallable._interceptors[:1] == the_users
    assert method.is_plain is not intercepted
    request = types.PublishRequest(topic="topic", messages=[{"data": b"data"}])
    serialized = types.PublishRequest.serialize(request)
    assert method.prepare(serialized) == (request if intercepted else serialized)
    assert channel._unary_unary_interceptors == on_channel, "for the other methods"
    arguments = method.arguments("topic", 0, 1.0)
    assert "x-goog-pubsub-client-telemetry" in dict(arguments["metadata"])
    await transport.close()


async def test_a_log_handler_that_raises_when_a_connection_is_lost(
    loop: VirtualLoop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever resolves a batch goes on, and another connection is opened, in a later turn."""
    rpc = FakeRpc(loop)
    opened: list[int] = []
    monkeypatch.setattr(rpc, "_open", lambda: opened.append(1))
    monkeypatch.setattr(rpc._connections, "_hedges", Connection(rpc.method, own=True))
    monkeypatch.setattr(Connection, "lost", lambda *_: True)
    batch = FakeBatch(future=loop.create_future())
    batch.connection, batch.hedge_connections = rpc._connections.of(0), {1: rpc._connections.of(1)}
    with handled(fail_to_log):
        rpc.stored(batch, 1)
        assert opened == []
        await turns()
    assert opened == [1]
    assert "ZeroDivisionError: a connection answers nothing" in capsys.readouterr().err


@pytest.mark.parametrize("ends", ["answered", "cancelled", "failed", "refused"])
async def test_a_request_on_an_own_connection_is_in_flight_until_it_ends(
    loop: VirtualLoop, ends: str
) -> None:
    """However it ends; one that is cancelled is cancelled on the wire, too."""
    rpc = FakeRpc(loop)
    own: Connection[Any] = Connection(rpc.method, own=True)
    rpc._connections.own, rpc._connections._hedges = [own], own
    error = ValueError("closed channel")
    batch = FakeBatch(future=loop.create_future())
    if ends == "refused":
        batch.on_send = refuse(error)
    rpc.commit(batch)
    task = asyncio.ensure_future(rpc.call(batch, 1, 10.0))
    await turns()
    (request,) = batch.calls
    if ends != "refused":
        assert own.in_flight == {request}
    assert (request.attempt, request.timeout) == (1, 10.0)
    {"answered": request.succeed, "cancelled": task.cancel}.get(ends, lambda: request.fail(error))()
    await asyncio.wait([task])
    assert request.cancelled is (ends == "cancelled")
    if ends == "answered":
        assert task.result() == ["1"]
    elif ends != "cancelled":
        assert task.exception() is error
    assert (own.in_flight, own.starting) == (set(), 0)
