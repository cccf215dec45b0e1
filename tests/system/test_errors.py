"""What a publish fails with is what the official clients fail with, in all that it offers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1 import PublisherClient
from google.pubsub_v1 import PublisherAsyncClient, types
from google.pubsub_v1.services.publisher.transports import (
    PublisherGrpcAsyncIOTransport,
    PublisherGrpcTransport,
)

from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher
from hedged_pubsub._google.core_server import CoreServer, ServerCall
from hedged_pubsub.testing import FaultScript, PubSubServer, Status

from .conftest import TOPIC, New, both_kinds

DENIED = FaultScript(faults=[Status("PERMISSION_DENIED", retry_after=1)])


def facts(error: Any) -> dict[str, Any]:
    """Return what a program can see of an error of gRPC's, or what it raises when asked."""

    def ask(name: str, *arguments: Any) -> object:
        try:
            answer = getattr(error, name)(*arguments)
        except Exception as raised:  # noqa: BLE001 - for the comparison
            return "itself" if raised is error else repr(raised)
        return "itself" if answer is error else type(answer) if name == "traceback" else answer

    told: list[Any] = []
    names = ("code", "details", "debug_error_string", "initial_metadata", "trailing_metadata")
    futures = ("cancel", "cancelled", "done", "running", "result", "exception", "traceback")
    contexts = ("is_active", "time_remaining")
    seen = {name: ask(name) for name in (*names, *futures, *contexts, "__str__", "__repr__")}
    ask("add_done_callback", told.append)
    ask("add_callback", told.append)
    return {**seen, "type": type(error), "told": [one is error for one in told]}


def all_facts(error: exceptions.GoogleAPICallError) -> str:
    """Return what a program can see of the error of a publish."""
    (inner,) = error.errors
    assert error.response is inner
    seen = repr((type(error), str(error), error.code, error.details, facts(inner)))
    # In older releases of gRPC: when it was made, with the rest in any order.
    return re.sub("{[^{}]*created_time:[^{}]*}", "", seen)


class Interceptor(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Passes calls on."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Pass a call on."""
        return continuation(details, request)


@pytest.mark.parametrize("interceptors", [[], [Interceptor()]], ids=["plain", "intercepted"])
def test_an_error_offers_what_the_official_one_does(
    server: PubSubServer, interceptors: list[Interceptor]
) -> None:
    """Texts, metadata, and the methods of a future that has ended."""
    seen = []
    for client in (PublisherClient, HedgedPublisher):
        server.set_script(DENIED)  # so that its texts, which number calls, are the same
        channel = grpc.intercept_channel(grpc.insecure_channel(server.address), *interceptors)
        with client(transport=PublisherGrpcTransport(channel=channel)) as publisher:
            with pytest.raises(exceptions.PermissionDenied) as raised:
                publisher.publish(TOPIC, b"data").result(timeout=10)
        seen.append(all_facts(raised.value))
    assert seen[1] == seen[0]


def test_an_asyncio_error_offers_what_the_official_one_does(server: PubSubServer) -> None:
    """Texts and metadata."""
    request = {"topic": TOPIC, "messages": [{"data": b"data"}]}

    async def official() -> None:
        channel = grpc.aio.insecure_channel(server.address)
        client = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=channel))
        async with client:
            await client.publish(request)

    async def ours() -> None:
        async with AsyncHedgedPublisher() as publisher:
            await publisher.publish(TOPIC, b"data")

    seen = []
    for publish in (official, ours):
        server.set_script(DENIED)
        with pytest.raises(exceptions.PermissionDenied) as raised:
            asyncio.run(publish())
        seen.append(all_facts(raised.value))
    assert seen[1] == seen[0]


@contextmanager
def answering(*answers: Callable[[ServerCall], object]) -> Iterator[list[bytes]]:
    """Run a server that answers the first publish with the first answer, and so on."""
    requests: list[bytes] = []

    def publish(call: ServerCall, request: bytes) -> None:
        requests.append(request)
        answers[len(requests) - 1](call)

    server = CoreServer({"/google.pubsub.v1.Publisher/Publish": publish}, (), "answering")
    port = server.listen("127.0.0.1:0")
    server.start()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{port}")
        try:
            yield requests
        finally:
            server.stop(0)


def stored(call: ServerCall) -> None:
    """Answer as the service does."""
    call.end(message=types.PublishResponse.serialize(types.PublishResponse(message_ids=["1"])))


def fail_with_broken_details(code: grpc.StatusCode) -> Callable[[ServerCall], None]:
    """Return what fails a call with a status whose details cannot be read."""
    broken = (("grpc-status-details-bin", b"\xff\xff"),)
    return lambda call: call.end(code, "no", trailing_metadata=broken)


@both_kinds
@pytest.mark.parametrize(
    "answer",
    [
        lambda call: call.end(message=b"\xff\xff\xff"),
        fail_with_broken_details(grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["an answer", "details"],
)
def test_what_cannot_be_read_is_retried(new_publisher: New, answer: Any) -> None:
    """An unreadable answer is INTERNAL, as officially; a status is one without its details, too."""
    with answering(answer, stored) as requests, new_publisher() as publisher:
        assert publisher.publish(TOPIC, b"data").result(timeout=20) == "1"
        assert len(requests) == 2


@both_kinds
def test_a_refusal_with_unreadable_details_is_one(new_publisher: New) -> None:
    """The official client's futures would stay pending."""
    denied = fail_with_broken_details(grpc.StatusCode.PERMISSION_DENIED)
    with answering(denied) as requests, new_publisher() as publisher:
        future = publisher.publish(TOPIC, b"data")
        with pytest.raises(exceptions.PermissionDenied, match="no"):
            future.result(timeout=20)
        assert len(requests) == 1
