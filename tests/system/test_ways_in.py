"""Every way to make, configure and call a publisher; each works as with the official client."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.gapic_v1.client_info import ClientInfo
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.protobuf import field_mask_pb2
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from .conftest import FAST, ONE_MESSAGE, MakePublisher, wait_until

BOTH = pytest.mark.parametrize("publisher_class", [pubsub_v1.PublisherClient, HedgedPublisher])
"""What a program sees must be the same with either class."""

PublisherClass = type[pubsub_v1.PublisherClient]


class OwnTransport(PublisherGrpcTransport):
    """A user's transport, with a channel of its own making."""

    @classmethod
    def create_channel(cls, host: str = "", *args: Any, **arguments: Any) -> grpc.Channel:
        return grpc.insecure_channel(host, options=[("grpc.primary_user_agent", "own/1")])


class Stamp(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's interceptor that adds metadata."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        details.metadata.append(("x-stamp", "seen"))
        return continuation(details, request)


def make_factory(server: PubSubServer) -> Callable[..., PublisherGrpcTransport]:
    """Return a function that makes a transport to the server."""

    def make_transport(**arguments: Any) -> PublisherGrpcTransport:
        return PublisherGrpcTransport(**arguments, channel=grpc.insecure_channel(server.address))

    return make_transport


@BOTH
@pytest.mark.parametrize("keyword", [False, True], ids=["positional", "keyword"])
def test_batch_settings_and_options(
    server: PubSubServer, topic: str, publisher_class: PublisherClass, keyword: bool
) -> None:
    """Both are taken by position and by name, and followed."""
    settings = BatchSettings(max_messages=3, max_latency=60)
    options = PublisherOptions(timeout=7.0)
    with (
        publisher_class(batch_settings=settings, publisher_options=options)
        if keyword
        else publisher_class(settings, options)
    ) as publisher:
        assert publisher.batch_settings == settings
        assert publisher.publisher_options == options
        futures = [publisher.publish(topic, b"data") for _ in range(4)]
        for future in futures[:2]:  # the official client sends the third with the next batch
            future.result(timeout=5)
        publisher.stop()
        futures[3].result(timeout=5)
    assert [attempt.message_count for attempt in server.attempts()] == [2, 2]
    for attempt in server.attempts():
        assert attempt.timeout == pytest.approx(7, abs=0.5)


@pytest.mark.parametrize("way", ["name", "class", "own class", "factory", "partial", "instance"])
def test_transports(
    server: PubSubServer, topic: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Whichever way the transport is given, a slow publish is hedged over it."""
    make: dict[str, Callable[[], Any]] = {
        "name": lambda: "grpc",
        "class": lambda: PublisherGrpcTransport,
        "own class": lambda: OwnTransport,
        "factory": lambda: make_factory(server),
        "partial": lambda: partial(make_factory(server)),
        "instance": make_factory(server),
    }
    arguments: dict[str, Any] = {}
    if way not in {"name", "class"}:
        # With the variable set the official client makes the channel, or wants a class.
        monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    if way == "own class":
        arguments = {
            "credentials": AnonymousCredentials(),
            "client_options": {"api_endpoint": server.address},
        }
    with HedgedPublisher(
        ONE_MESSAGE, hedging_settings=FAST, transport=make[way](), **arguments
    ) as publisher:
        for _ in range(10):
            publisher.publish(topic, b"warm-up").result(timeout=5)
        server.clear()
        server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
        publisher.publish(topic, b"data").result(timeout=5)
        assert [attempt.attempt_number for attempt in server.attempts()] == [0, 1]
    if way == "own class":
        assert "own/1" in str(dict(server.attempts()[1].metadata)["user-agent"])


@BOTH
@pytest.mark.usefixtures("server")
def test_a_transport_that_does_not_exist(publisher_class: PublisherClass) -> None:
    """An unknown name is the official error."""
    with pytest.raises(KeyError, match="carrier-pigeon"):
        publisher_class(transport="carrier-pigeon")


@pytest.mark.usefixtures("server")
def test_a_factory_of_a_transport_without_cancellable_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a factory returns is looked at once it was called, and refused like its class."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    rest = pubsub_v1.PublisherClient.get_transport_class("rest")
    with pytest.raises(ValueError, match="has no gRPC calls that can be cancelled"):
        HedgedPublisher(transport=partial(rest), credentials=AnonymousCredentials())


def test_every_attempt_passes_the_interceptors(server: PubSubServer, topic: str) -> None:
    """What an interceptor adds is on the original, its retry, and the hedge."""
    channel = grpc.intercept_channel(grpc.insecure_channel(server.address), Stamp())
    with HedgedPublisher(
        ONE_MESSAGE, hedging_settings=FAST, transport=PublisherGrpcTransport(channel=channel)
    ) as publisher:
        for _ in range(10):
            publisher.publish(topic, b"warm-up").result(timeout=5)
        server.clear()
        server.set_script(
            FaultScript(faults=[Status("UNAVAILABLE", times=1), Stall(30, attempts=[0])])
        )
        retry = Retry(initial=0.01, maximum=0.01)
        publisher.publish(topic, b"data", retry=retry).result(timeout=5)
    assert [attempt.attempt_number for attempt in server.attempts()] == [0, 0, 1]
    assert all(("x-stamp", "seen") in attempt.metadata for attempt in server.attempts())


def test_an_interceptor_that_raises(server: PubSubServer, topic: str) -> None:
    """The future gets the interceptor's error, at once; officially it would never be done."""

    class Raise(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            raise ZeroDivisionError

    channel = grpc.intercept_channel(grpc.insecure_channel(server.address), Raise())
    with HedgedPublisher(
        ONE_MESSAGE, transport=PublisherGrpcTransport(channel=channel)
    ) as publisher:
        future = publisher.publish(topic, b"data")
        assert isinstance(future.exception(timeout=1), ZeroDivisionError)


class WaitForAnswer(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's interceptor that waits for the answer, as one that logs or counts outcomes does."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        call = continuation(details, request)
        call.code()
        return call


@pytest.fixture
def waiting(server: PubSubServer) -> PublisherGrpcTransport:
    """Make a transport whose interceptor waits for every answer."""
    channel = grpc.intercept_channel(grpc.insecure_channel(server.address), WaitForAnswer())
    return PublisherGrpcTransport(channel=channel)


def test_an_interceptor_that_waits_does_not_hold_up_publish(
    server: PubSubServer, topic: str, waiting: PublisherGrpcTransport, make_publisher: MakePublisher
) -> None:
    """``publish()`` returns at once, and the hedge rescues what the interceptor waits for."""
    publisher = make_publisher(tokens=1, transport=waiting)
    server.set_script(FaultScript(faults=[Stall(2, attempts=[0])]))
    called = time.monotonic()
    future = publisher.publish(topic, b"data")
    assert time.monotonic() - called < 0.5
    future.result(timeout=5)
    assert time.monotonic() - called < 1


def test_an_interceptor_that_waits_does_not_hold_up_other_topics(
    server: PubSubServer, topic: str, waiting: PublisherGrpcTransport, make_publisher: MakePublisher
) -> None:
    """Of two batches that have waited long enough, each is sent whatever holds up the other."""
    other = server.create_topic("other")
    publisher = make_publisher(
        tokens=0, transport=waiting, batch_settings=BatchSettings(max_latency=0.05)
    )
    server.set_script(FaultScript(faults=[Stall(2, topic=topic)]))
    called = time.monotonic()
    publisher.publish(topic, b"data")
    publisher.publish(other, b"data").result(timeout=5)
    assert time.monotonic() - called < 1


@BOTH
def test_client_info(server: PubSubServer, topic: str, publisher_class: PublisherClass) -> None:
    """The caller's client info is in the header by which Google counts clients."""
    info = ClientInfo(client_library_version="9.8.7", user_agent="shop/6.5")
    with publisher_class(ONE_MESSAGE, client_info=info) as publisher:
        publisher.publish(topic, b"data").result(timeout=5)
    (attempt,) = server.attempts()
    assert dict(attempt.metadata)["x-goog-api-client"] == info.to_user_agent()
    assert "shop/6.5" in info.to_user_agent()


@BOTH
def test_the_emulator_comes_first(
    server: PubSubServer, topic: str, publisher_class: PublisherClass
) -> None:
    """``PUBSUB_EMULATOR_HOST`` stands above credentials and client options."""
    with publisher_class(
        ONE_MESSAGE,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": "localhost:1"},
    ) as publisher:
        assert publisher.target == server.address
        publisher.publish(topic, b"data").result(timeout=5)
    assert len(server.messages()) == 1


def test_the_calls_retry_comes_before_that_of_the_options(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """``retry=None`` of a call is no retry, although the options have one, and the other way."""
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", calls=[1, 3])]))
    retry = Retry(initial=0.01, maximum=0.01)
    publisher = make_publisher(tokens=0, publisher_options=PublisherOptions(retry=retry))
    future = publisher.publish(topic, b"data", retry=None)
    assert isinstance(future.exception(timeout=5), exceptions.ServiceUnavailable)
    assert len(server.attempts()) == 1
    publisher.publish(topic, b"data").result(timeout=5)
    publisher.publish(topic, b"data").result(timeout=5)
    assert len(server.attempts()) == 4


@BOTH
def test_the_generated_methods(server: PubSubServer, publisher_class: PublisherClass) -> None:
    """Topics are created, read, changed and deleted."""
    with publisher_class() as publisher:
        name = publisher.topic_path("test", "goods")
        assert publisher.create_topic(name=name).name == name
        changed = publisher.update_topic(
            topic={"name": name, "labels": {"colour": "blue"}},
            update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
        )
        assert publisher.get_topic(topic=name).labels == changed.labels == {"colour": "blue"}
        assert list(publisher.list_topic_subscriptions(topic=name)) == []
        publisher.delete_topic(topic=name)
        with pytest.raises(exceptions.NotFound):
            publisher.get_topic(topic=name)
    assert publisher_class.parse_topic_path(name) == {"project": "test", "topic": "goods"}


@BOTH
def test_the_api_property(
    server: PubSubServer, topic: str, publisher_class: PublisherClass
) -> None:
    """The deprecated proxy has the generated methods, ``publish`` of a whole batch included."""
    with publisher_class() as publisher:
        with pytest.warns(DeprecationWarning, match="api"):
            api = publisher.api
        answer = api.publish(topic=topic, messages=[{"data": b"one"}, {"data": b"two"}])
    assert len(answer.message_ids) == 2
    assert [message.data for message in server.messages()] == [b"one", b"two"]


@BOTH
def test_resume_publish(topic: str, publisher_class: PublisherClass) -> None:
    """Without ordering there is nothing to resume, and less on a stopped publisher."""
    with publisher_class() as publisher:
        with pytest.raises(ValueError, match="if ordering is not enabled"):
            publisher.resume_publish(topic, "key")
        publisher.stop()
        with pytest.raises(RuntimeError, match="stopped publisher"):
            publisher.resume_publish(topic, "key")


@BOTH
@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.usefixtures("server")
def test_open_telemetry_enabled(publisher_class: PublisherClass, enabled: bool) -> None:
    """The property says what the options say."""
    options = PublisherOptions(enable_open_telemetry_tracing=enabled)
    with publisher_class(publisher_options=options) as publisher:
        assert publisher.open_telemetry_enabled is enabled


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("operation", [pickle.dumps, copy.deepcopy])
def test_pickling_and_deep_copying(operation: Callable[[object], object]) -> None:
    """Neither is possible, and the error is of the type that it is officially."""
    errors: list[Exception] = []
    for publisher_class in (pubsub_v1.PublisherClient, HedgedPublisher):
        with publisher_class() as publisher:
            with pytest.raises((TypeError, ValueError)) as caught:
                operation(publisher)
            errors.append(caught.value)
    assert type(errors[0]) is type(errors[1])


@BOTH
def test_copying(topic: str, publisher_class: PublisherClass) -> None:
    """A shallow copy publishes through the same channel."""
    with publisher_class(ONE_MESSAGE) as publisher:
        assert copy.copy(publisher).publish(topic, b"data").result(timeout=5)


def test_a_subclass_of_the_users(server: PubSubServer, topic: str) -> None:
    """A program's own publisher may override ``publish()`` and call what it inherits."""

    class Tagged(HedgedPublisher):
        def publish(self, topic: str, data: bytes, *args: Any, **attrs: Any) -> Any:
            return super().publish(topic, data, *args, **attrs, tag="ours")

    with Tagged(ONE_MESSAGE, hedging_settings=FAST) as publisher:
        assert isinstance(publisher, pubsub_v1.PublisherClient)
        for _ in range(10):
            publisher.publish(topic, b"warm-up").result(timeout=5)
        server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
        publisher.publish(topic, b"data", colour="blue").result(timeout=5)
        wait_until(lambda: publisher.hedging_stats().hedges_won == 1)
    assert server.messages()[-1].attributes == (("colour", "blue"), ("tag", "ours"))
