"""The second channel is made by the same call as the client's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.api_core import client_options, grpc_helpers, grpc_helpers_async
from google.auth.credentials import AnonymousCredentials
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherAsyncClient
from google.pubsub_v1.services.publisher.transports import (
    PublisherGrpcAsyncIOTransport,
    PublisherGrpcTransport,
)

from hedged_pubsub._channels import second_channel

LOCAL_POOL = ("grpc.use_local_subchannel_pool", 1)
PUBLISHERS = [
    pytest.param(
        pubsub_v1.PublisherClient, PublisherGrpcTransport, grpc_helpers, grpc, id="threads"
    ),
    pytest.param(
        PublisherAsyncClient,
        PublisherGrpcAsyncIOTransport,
        grpc_helpers_async,
        grpc.aio,
        id="asyncio",
    ),
]


@pytest.fixture
def channels() -> Iterator[Callable[[Any], Any]]:
    """Make channels to nowhere, and close them after the test; those of asyncio need a loop."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    made: list[Any] = []

    def make(library: Any) -> Any:
        made.append(library.insecure_channel("127.0.0.1:1"))
        return made[-1]

    yield make
    for channel in made:
        closing = channel.close()
        if closing is not None:
            loop.run_until_complete(closing)
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(autouse=True)
def no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels are made as for the service."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)


@pytest.mark.parametrize(("client", "transport", "helpers", "library"), PUBLISHERS)
@pytest.mark.parametrize("by", ["default", "name", "class"])
def test_it_differs_in_one_option(
    client: Any,
    transport: Any,
    helpers: Any,
    library: Any,
    by: str,
    channels: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Host, credentials, scopes, quota project, certificates and options are the client's."""
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def create_channel(*args: Any, **kwargs: Any) -> Any:
        made.append((args, kwargs))
        return channels(library)

    monkeypatch.setattr(helpers, "create_channel", create_channel)
    arguments: dict[str, Any] = {
        "credentials": AnonymousCredentials(),
        "client_options": client_options.ClientOptions(
            api_endpoint="pubsub.example.org:8443",
            quota_project_id="payer",
            scopes=["https://www.googleapis.com/auth/pubsub"],
        ),
    }
    name = "grpc" if transport is PublisherGrpcTransport else "grpc_asyncio"
    if by != "default":
        arguments["transport"] = name if by == "name" else transport
    make_channel = second_channel(arguments, transport, library.insecure_channel)
    assert make_channel is not None
    publisher = client(**arguments)
    assert isinstance(publisher.transport, transport)
    assert type(publisher.transport).__name__ == transport.__name__
    make_channel()
    (first_args, first), (second_args, second) = made
    assert second_args == first_args
    assert second.pop("options") == [*first.pop("options"), LOCAL_POOL]
    assert second == first
    assert first_args[0] == "pubsub.example.org:8443"
    assert first["quota_project_id"] == "payer"
    assert first["scopes"] == ["https://www.googleapis.com/auth/pubsub"]


@pytest.mark.parametrize(("client", "transport", "helpers", "library"), PUBLISHERS)
def test_client_certificates(
    client: Any,
    transport: Any,
    helpers: Any,
    library: Any,
    channels: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutual TLS: the second channel has the certificate that the client worked out."""
    made: list[dict[str, Any]] = []

    def create_channel(*_args: Any, **kwargs: Any) -> Any:
        made.append(kwargs)
        return channels(library)

    monkeypatch.setattr(helpers, "create_channel", create_channel)
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    loaded: list[str] = []

    def certificate() -> tuple[bytes, bytes]:
        loaded.append("loaded")
        return b"certificate", b"key"

    arguments: dict[str, Any] = {
        "credentials": AnonymousCredentials(),
        "client_options": client_options.ClientOptions(client_cert_source=certificate),
    }
    make_channel = second_channel(arguments, transport, library.insecure_channel)
    assert make_channel is not None
    client(**arguments)
    make_channel()
    assert loaded == ["loaded"]
    assert made[0]["ssl_credentials"] is not None
    assert made[0]["ssl_credentials"] is made[1]["ssl_credentials"]


def test_a_channel_of_the_users_has_no_second() -> None:
    """It cannot be made again, and neither can what a function of the user's returns."""
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        ready = PublisherGrpcTransport(channel=channel)
        for transport in (ready, lambda **_kwargs: ready):
            arguments: dict[str, Any] = {"transport": transport}
            made = second_channel(arguments, PublisherGrpcTransport, grpc.insecure_channel)
            assert made is None
            assert arguments == {"transport": transport}


def test_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client makes that channel without its transport, insecure; so is the second."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:8085")
    made: list[Any] = []
    arguments: dict[str, Any] = {}
    make_channel = second_channel(
        arguments, PublisherGrpcTransport, lambda *args, **kwargs: made.append((args, kwargs))
    )
    assert make_channel is not None
    assert arguments == {}
    make_channel()
    assert made == [(("127.0.0.1:8085",), {"options": [LOCAL_POOL]})]
