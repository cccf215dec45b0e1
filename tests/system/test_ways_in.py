"""Every way to make, configure and call a publisher; each works as with the official client."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.gapic_v1.client_info import ClientInfo
from google.api_core.retry import AsyncRetry, Retry
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

from .conftest import FAST, ONE_MESSAGE, TOPIC, Make, both_clients, both_kinds, earn, wait_until
from .test_rules import numbers, stall_originals

PublisherClass = type[pubsub_v1.PublisherClient]


class OwnTransport(PublisherGrpcTransport):
    """A user's transport, with a channel of its own making."""

    @classmethod
    def create_channel(cls, host: str = "", *args: Any, **arguments: Any) -> grpc.Channel:
        return grpc.insecure_channel(host, options=[("grpc.primary_user_agent", "own/1")])


class Stamp(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's interceptor that adds metadata."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        details.metadata.append(("x-stamp", type(request).__name__))
        return continuation(details, request)


@both_clients
@pytest.mark.parametrize("keyword", [False, True], ids=["positional", "keyword"])
def test_batch_settings_and_options(
    server: PubSubServer, publisher_class: PublisherClass, keyword: bool
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
        futures = [publisher.publish(TOPIC, b"data") for _ in range(4)]
        for future in futures[:2]:  # the official client sends the third with the next batch
            future.result(timeout=5)
        publisher.stop()
        futures[3].result(timeout=5)
    assert [attempt.message_count for attempt in server.attempts()] == [2, 2]
    for attempt in server.attempts():
        assert attempt.timeout == pytest.approx(7, abs=0.5)


@pytest.mark.parametrize("way", ["name", "class", "own class", "factory", "partial", "instance"])
def test_transports(server: PubSubServer, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Whichever way the transport is given, a slow publish is hedged over it."""

    def factory(**arguments: Any) -> PublisherGrpcTransport:
        return PublisherGrpcTransport(**arguments, channel=grpc.insecure_channel(server.address))

    ways: dict[str, dict[str, Any]] = {
        "name": {"transport": "grpc"},
        "class": {"transport": PublisherGrpcTransport},
        "own class": {
            "transport": OwnTransport,
            "credentials": AnonymousCredentials(),
            "client_options": {"api_endpoint": server.address},
        },
        "factory": {"transport": factory},
        "partial": {"transport": partial(factory)},
        "instance": {"transport": factory()},
    }
    if way not in {"name", "class"}:
        # With the variable set the official client makes the channel, or wants a class.
        monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=FAST, **ways[way]) as publisher:
        earn(publisher)
        server.clear()
        server.set_script(stall_originals())
        publisher.publish(TOPIC, b"data").result(timeout=5)
        assert numbers(server.attempts()) == [0, 1]
    if way == "own class":
        assert "own/1" in str(dict(server.attempts()[1].metadata)["user-agent"])


@both_clients
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


def test_every_attempt_passes_the_interceptors(server: PubSubServer, make: Make) -> None:
    """What an interceptor adds is on the original, its retry, and the hedge."""
    channel = grpc.intercept_channel(grpc.insecure_channel(server.address), Stamp())
    script = FaultScript(faults=[Status("UNAVAILABLE", times=1), Stall(30, attempts=[0])])
    publisher = make(tokens=1, script=script, transport=PublisherGrpcTransport(channel=channel))
    retry = Retry(initial=0.01, maximum=0.01)
    publisher.publish(TOPIC, b"data", retry=retry).result(timeout=5)
    assert numbers(server.attempts()) == [0, 0, 1]
    assert all(("x-stamp", "PublishRequest") in attempt.metadata for attempt in server.attempts())


@pytest.mark.parametrize("settings", [FAST, None], ids=["", "hedging off"])
def test_an_interceptor_that_raises(server: PubSubServer, settings: HedgingSettings | None) -> None:
    """The future gets the interceptor's error, at once; officially it would never be done."""

    class Raise(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
            raise ZeroDivisionError

    channel = grpc.intercept_channel(grpc.insecure_channel(server.address), Raise())
    transport = PublisherGrpcTransport(channel=channel)
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=settings, transport=transport) as publisher:
        future = publisher.publish(TOPIC, b"data")
        assert isinstance(future.exception(timeout=1), ZeroDivisionError)


class WaitForAnswer(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """A user's interceptor that waits for the answer, as one that logs or counts outcomes does."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        call = continuation(details, request)
        call.code()
        return call


def test_an_interceptor_that_waits_holds_up_neither_publish_nor_other_topics(
    server: PubSubServer, make: Make
) -> None:
    """``publish()`` returns at once, others are sent, and a hedge rescues what is waited for.

    The request that has lost is cancelled in the interceptor's hands.
    """
    channel = grpc.intercept_channel(grpc.insecure_channel(server.address), WaitForAnswer())
    transport = PublisherGrpcTransport(channel=channel)
    other = server.create_topic("other")
    publisher = make(
        tokens=1,
        transport=transport,
        batch_settings=BatchSettings(max_latency=0.05),
        script=FaultScript(faults=[Stall(5, topic=TOPIC, attempts=[0])]),
    )
    first = publisher.publish(TOPIC, b"data")
    publisher.publish(other, b"data").result(timeout=4)
    first.result(timeout=4)
    wait_until(lambda: [one.outcome for one in server.attempts() if one.fault] == ["cancelled"])
    wait_until(lambda: publisher.hedging_stats().attempts_cancelled == 1)
    server.set_script(FaultScript(faults=[Stall(1, topic=TOPIC)]))
    first = publisher.publish(TOPIC, b"without a token")
    publisher.publish(other, b"data").result(timeout=4)
    assert not first.done()


@both_clients
def test_client_info(server: PubSubServer, publisher_class: PublisherClass) -> None:
    """The caller's client info is in the header by which Google counts clients."""
    info = ClientInfo(client_library_version="9.8.7", user_agent="shop/6.5")
    with publisher_class(ONE_MESSAGE, client_info=info) as publisher:
        publisher.publish(TOPIC, b"data").result(timeout=5)
    (attempt,) = server.attempts()
    assert dict(attempt.metadata)["x-goog-api-client"] == info.to_user_agent()
    assert "shop/6.5" in info.to_user_agent()


@both_clients
def test_the_emulator_comes_first(server: PubSubServer, publisher_class: PublisherClass) -> None:
    """``PUBSUB_EMULATOR_HOST`` stands above credentials and client options."""
    with publisher_class(
        ONE_MESSAGE,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": "localhost:1"},
    ) as publisher:
        assert publisher.target == server.address
        publisher.publish(TOPIC, b"data").result(timeout=5)
    assert len(server.messages()) == 1


@both_kinds
def test_the_calls_timeout_and_retry_come_before_those_of_the_options(
    server: PubSubServer, make: Make, kind: str
) -> None:
    """``retry=None`` of a call is no retry, although the options have one, and the other way."""
    retry_class: Any = Retry if kind == "sync" else AsyncRetry
    options = PublisherOptions(retry=retry_class(initial=0.01, maximum=0.01), timeout=20.0)
    script = FaultScript(faults=[Status("UNAVAILABLE", calls=[1, 3])])
    publisher = make(script=script, publisher_options=options)
    future = publisher.publish(TOPIC, b"data", retry=None)
    assert isinstance(future.exception(timeout=5), exceptions.ServiceUnavailable)
    assert len(server.attempts()) == 1
    publisher.publish(TOPIC, b"data").result(timeout=5)
    publisher.publish(TOPIC, b"data").result(timeout=5)
    assert len(server.attempts()) == 4
    publisher.publish(TOPIC, b"data", timeout=7.0).result(timeout=5)
    timeouts = [attempt.timeout for attempt in server.attempts()]
    assert timeouts == pytest.approx([20, 20, 20, 20, 7], abs=0.5)


def test_a_subclass_of_the_users(server: PubSubServer) -> None:
    """A program's own publisher may override ``publish()`` and call what it inherits."""

    class Tagged(HedgedPublisher):
        def publish(self, topic: str, data: bytes, *args: Any, **attrs: Any) -> Any:
            return super().publish(topic, data, *args, **attrs, tag="ours")

    with Tagged(ONE_MESSAGE, hedging_settings=FAST) as publisher:
        assert isinstance(publisher, pubsub_v1.PublisherClient)
        earn(publisher)
        server.set_script(stall_originals())
        publisher.publish(TOPIC, b"data", colour="blue").result(timeout=5)
        wait_until(lambda: publisher.hedging_stats().hedges_won == 1)
    assert server.messages()[-1].attributes == (("colour", "blue"), ("tag", "ours"))
