"""Credentials, certificates and endpoints, over real TLS."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials, Credentials, CredentialsWithQuotaProject
from google.auth.exceptions import RefreshError
from google.cloud import pubsub_v1
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from .conftest import FAST, ONE_MESSAGE
from .tls_server import CLIENT_HEADER, Authority, tls_server

BOTH = pytest.mark.parametrize("publisher_class", [pubsub_v1.PublisherClient, HedgedPublisher])
"""What a program sees must be the same with either class."""


class TokenCredentials(CredentialsWithQuotaProject):
    """Credentials with a token, and a quota project if the client sets one."""

    def __init__(self, quota_project: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._quota_project_id = quota_project

    def refresh(self, request: object) -> None:
        self.token = "a-token"  # noqa: S105

    def with_quota_project(self, quota_project_id: str) -> TokenCredentials:
        return TokenCredentials(quota_project_id)


class RevokedCredentials(Credentials):
    """Credentials that cannot be refreshed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def refresh(self, request: object) -> None:
        raise RefreshError("the key was revoked")


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server that clients are not told of by the environment."""
    with PubSubServer() as running:
        yield running


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Make the authority that the tests of this module trust."""
    return Authority()


@pytest.fixture
def endpoint(server: PubSubServer, authority: Authority) -> Iterator[str]:
    """Serve with TLS."""
    with tls_server(server.address, authority) as address:
        yield address


@pytest.fixture
def trusting(authority: Authority) -> Any:
    """Make what ``transport=`` takes: transports that trust the authority."""
    credentials = grpc.ssl_channel_credentials(authority.root)
    return partial(PublisherGrpcTransport, ssl_channel_credentials=credentials)


def only_headers(server: PubSubServer) -> Mapping[str, str | bytes]:
    """Return the metadata of the one attempt that the server got."""
    (attempt,) = server.attempts()
    return dict(attempt.metadata)


@BOTH
@pytest.mark.parametrize("options_type", [dict, ClientOptions])
def test_client_options(
    server: PubSubServer,
    topic: str,
    endpoint: str,
    trusting: Any,
    publisher_class: type[pubsub_v1.PublisherClient],
    options_type: Any,
) -> None:
    """Endpoint and quota project are followed, as a dictionary and as an object."""
    with publisher_class(
        ONE_MESSAGE,
        transport=trusting,
        credentials=TokenCredentials(),
        client_options=options_type(api_endpoint=endpoint, quota_project_id="paying"),
    ) as publisher:
        publisher.publish(topic, b"data").result(timeout=5)
        assert publisher.target == publisher.api_endpoint == endpoint
    headers = only_headers(server)
    assert headers["authorization"] == "Bearer a-token"
    assert headers["x-goog-user-project"] == "paying"


def test_hedges_are_authorized_too(
    server: PubSubServer, topic: str, endpoint: str, trusting: Any
) -> None:
    """Over TLS a slow publish is hedged, with the credentials, and the loser is cancelled."""
    with HedgedPublisher(
        ONE_MESSAGE,
        hedging_settings=HedgingSettings(0.1, refill_ratio=0.2),
        transport=trusting,
        credentials=TokenCredentials(),
        client_options={"api_endpoint": endpoint},
    ) as publisher:
        for _ in range(5):
            publisher.publish(topic, b"warm-up").result(timeout=5)
        server.clear()
        server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
        publisher.publish(topic, b"data").result(timeout=5)
        give_up = time.monotonic() + 5
        while server.attempts()[0].outcome == "pending" and time.monotonic() < give_up:
            time.sleep(0.01)
    attempts = server.attempts()
    assert [attempt.outcome for attempt in attempts] == ["cancelled", "answered"]
    for attempt in attempts:
        assert dict(attempt.metadata)["authorization"] == "Bearer a-token"


@BOTH
def test_anonymous_credentials(
    server: PubSubServer,
    topic: str,
    endpoint: str,
    trusting: Any,
    publisher_class: type[pubsub_v1.PublisherClient],
) -> None:
    """Anonymous credentials send no authorization."""
    with publisher_class(
        ONE_MESSAGE,
        transport=trusting,
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": endpoint},
    ) as publisher:
        publisher.publish(topic, b"data").result(timeout=5)
    assert "authorization" not in only_headers(server)


@BOTH
@pytest.mark.parametrize(
    ("retry", "error_type"),
    [
        (None, exceptions.ServiceUnavailable),
        (Retry(initial=0.01, timeout=0.3), exceptions.RetryError),
    ],
    ids=["without a retry", "with a retry"],
)
def test_credentials_that_cannot_be_refreshed(
    server: PubSubServer,
    topic: str,
    endpoint: str,
    trusting: Any,
    publisher_class: type[pubsub_v1.PublisherClient],
    retry: Retry | None,
    error_type: type[Exception],
) -> None:
    """To gRPC a failed refresh is UNAVAILABLE, which the caller's retry may retry; it ends."""
    arguments = {} if publisher_class is pubsub_v1.PublisherClient else {"hedging_settings": FAST}
    with publisher_class(
        ONE_MESSAGE,
        transport=trusting,
        credentials=RevokedCredentials(),
        client_options={"api_endpoint": endpoint},
        **arguments,
    ) as publisher:
        called = time.monotonic()
        error = publisher.publish(topic, b"data", retry=retry).exception(timeout=5)
        assert time.monotonic() - called < 1
    assert type(error) is error_type
    last = error.cause if isinstance(error, exceptions.RetryError) else error
    assert "the key was revoked" in str(last)
    assert server.attempts() == ()


@BOTH
def test_client_certificates(
    server: PubSubServer,
    topic: str,
    authority: Authority,
    publisher_class: type[pubsub_v1.PublisherClient],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client certificate is presented to a server that demands one."""
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    # gRPC reads the default roots once a process; so they are given where they are asked for.
    make_credentials = partial(grpc.ssl_channel_credentials, authority.root)
    monkeypatch.setattr(grpc, "ssl_channel_credentials", make_credentials)
    certificate = authority.issue("the shop")
    with (
        tls_server(server.address, authority, client_certificates=True) as endpoint,
        publisher_class(
            ONE_MESSAGE,
            credentials=TokenCredentials(),
            client_options={
                "api_endpoint": endpoint,
                "client_cert_source": lambda: (certificate.chain, certificate.key),
            },
        ) as publisher,
    ):
        publisher.publish(topic, b"data").result(timeout=5)
    headers = only_headers(server)
    assert headers[CLIENT_HEADER] == "the shop"
    assert headers["authorization"] == "Bearer a-token"


@BOTH
def test_universe_domain(publisher_class: type[pubsub_v1.PublisherClient]) -> None:
    """The universe domain is part of the endpoint."""
    with publisher_class(
        credentials=AnonymousCredentials(), client_options={"universe_domain": "example.test"}
    ) as publisher:
        assert publisher.universe_domain == "example.test"
        assert publisher.api_endpoint == "pubsub.example.test"


@pytest.fixture(scope="module")
def account() -> Mapping[str, str]:
    """Make the key of a service account that does not exist."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "test",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": "shop@test.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": "https://localhost:1/token",
    }


@pytest.mark.parametrize("source", ["file", "json", "info"])
def test_service_accounts(
    server: PubSubServer,
    topic: str,
    endpoint: str,
    trusting: Any,
    account: Mapping[str, str],
    tmp_path: Path,
    source: str,
) -> None:
    """Each of the three ways to a service account makes a hedging publisher that signs."""
    arguments: dict[str, Any] = {
        "batch_settings": ONE_MESSAGE,
        "hedging_settings": FAST,
        "transport": trusting,
        "client_options": {"api_endpoint": endpoint},
    }
    if source == "info":
        publisher = HedgedPublisher.from_service_account_info(account, **arguments)
    else:
        path = tmp_path / "key.json"
        path.write_text(json.dumps(account), encoding="utf-8")
        publisher = getattr(HedgedPublisher, f"from_service_account_{source}")(path, **arguments)
    with publisher:
        assert type(publisher) is HedgedPublisher
        assert publisher.hedging_settings == FAST
        publisher.publish(topic, b"data").result(timeout=5)
    authorization = str(only_headers(server)["authorization"])
    payload = authorization.removeprefix("Bearer ").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["iss"] == account["client_email"]
