"""Credentials, certificates and endpoints, over real TLS."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from google.cloud.pubsub_v1 import PublisherClient as Client
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import AsyncHedgedPublisher, HedgedPublisher
from hedged_pubsub.testing import PubSubServer

from .aio.publishers import run
from .conftest import FAST, ONE_MESSAGE, TOPIC, both_clients, earn, settled, wait_until
from .test_rules import stall_originals
from .tls_server import CLIENT_HEADER, Authority, tls_server
from .tls_server import authority as authority


class Tokens(CredentialsWithQuotaProject):
    """Credentials with a token, and a quota project if the client sets one."""

    def __init__(self, quota_project: str | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._quota_project_id = quota_project

    def refresh(self, request: object) -> None:
        self.token = "a-token"  # noqa: S105

    def with_quota_project(self, quota_project_id: str) -> Tokens:
        return Tokens(quota_project_id)


class Revoked(Credentials):
    """Credentials that cannot be refreshed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def refresh(self, request: object) -> None:
        raise RefreshError("the key was revoked")


@dataclass(frozen=True, kw_only=True)
class Tls:
    """A server that clients are not told of by the environment, and where it is served with TLS."""

    server: PubSubServer
    endpoint: str
    authority: Authority

    def __call__(self, make: Callable[..., Any], *args: Any, **arguments: Any) -> Any:
        """Make a publisher that trusts the authority."""
        credentials = grpc.ssl_channel_credentials(self.authority.root)
        transport = partial(PublisherGrpcTransport, ssl_channel_credentials=credentials)
        arguments.setdefault("client_options", {"api_endpoint": self.endpoint})
        return make(*args, batch_settings=ONE_MESSAGE, transport=transport, **arguments)

    def headers(self) -> Mapping[str, str | bytes]:
        """Return the metadata of the one attempt that the server got."""
        (attempt,) = self.server.attempts()
        return dict(attempt.metadata)


@pytest.fixture
def tls(authority: Authority) -> Iterator[Tls]:
    """Serve with TLS."""
    with PubSubServer() as server, tls_server(server.address, authority) as endpoint:
        server.create_topic(TOPIC)
        yield Tls(server=server, endpoint=endpoint, authority=authority)


@both_clients
@pytest.mark.parametrize("options_type", [dict, ClientOptions])
def test_client_options(tls: Tls, publisher_class: type[Client], options_type: Any) -> None:
    """Endpoint and quota project are followed, as a dictionary and as an object."""
    options = options_type(api_endpoint=tls.endpoint, quota_project_id="paying")
    with tls(publisher_class, credentials=Tokens(), client_options=options) as publisher:
        publisher.publish(TOPIC, b"data").result(timeout=5)
        assert publisher.target == publisher.api_endpoint == tls.endpoint
    assert tls.headers()["authorization"] == "Bearer a-token"
    assert tls.headers()["x-goog-user-project"] == "paying"


def test_hedges_are_authorized_too(tls: Tls) -> None:
    """Over TLS a slow publish is hedged, with the credentials, and the loser is cancelled."""
    with tls(HedgedPublisher, hedging_settings=FAST, credentials=Tokens()) as publisher:
        earn(publisher)
        tls.server.clear()
        tls.server.set_script(stall_originals())
        publisher.publish(TOPIC, b"data").result(timeout=5)
        wait_until(settled(tls.server))
    attempts = tls.server.attempts()
    assert [attempt.outcome for attempt in attempts] == ["cancelled", "answered"]
    for attempt in attempts:
        assert dict(attempt.metadata)["authorization"] == "Bearer a-token"


@both_clients
def test_anonymous_credentials(tls: Tls, publisher_class: type[Client]) -> None:
    """Anonymous credentials send no authorization."""
    with tls(publisher_class, credentials=AnonymousCredentials()) as publisher:
        publisher.publish(TOPIC, b"data").result(timeout=5)
    assert "authorization" not in tls.headers()


@both_clients
@pytest.mark.parametrize(
    ("retry", "error_type"),
    [
        (None, exceptions.ServiceUnavailable),
        (Retry(initial=0.01, timeout=0.3), exceptions.RetryError),
    ],
    ids=["without a retry", "with a retry"],
)
def test_credentials_that_cannot_be_refreshed(
    tls: Tls, publisher_class: type[Client], retry: Retry | None, error_type: type[Exception]
) -> None:
    """To gRPC a failed refresh is UNAVAILABLE, which the caller's retry may retry; it ends."""
    arguments = {} if publisher_class is Client else {"hedging_settings": FAST}
    with tls(publisher_class, credentials=Revoked(), **arguments) as publisher:
        error = publisher.publish(TOPIC, b"data", retry=retry).exception(timeout=5)
    assert type(error) is error_type
    last = error.cause if isinstance(error, exceptions.RetryError) else error
    assert "the key was revoked" in str(last)
    assert tls.server.attempts() == ()


@both_clients
def test_client_certificates(
    tls: Tls, publisher_class: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client certificate is presented to a server that demands one."""
    monkeypatch.setenv("GOOGLE_API_USE_CLIENT_CERTIFICATE", "true")
    # gRPC reads the default roots once a process; so they are given where they are asked for.
    make_credentials = partial(grpc.ssl_channel_credentials, tls.authority.root)
    monkeypatch.setattr(grpc, "ssl_channel_credentials", make_credentials)
    certificate = tls.authority.issue("the shop")
    options = {"client_cert_source": lambda: (certificate.chain, certificate.key)}
    with tls_server(tls.server.address, tls.authority, client_certificates=True) as endpoint:
        with publisher_class(
            ONE_MESSAGE, credentials=Tokens(), client_options={"api_endpoint": endpoint, **options}
        ) as publisher:
            publisher.publish(TOPIC, b"data").result(timeout=5)
    assert tls.headers()[CLIENT_HEADER] == "the shop"
    assert tls.headers()["authorization"] == "Bearer a-token"


@both_clients
def test_universe_domain(publisher_class: type[Client]) -> None:
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
    tls: Tls, account: Mapping[str, str], tmp_path: Path, source: str
) -> None:
    """Each of the three ways to a service account makes a hedging publisher that signs."""
    given: Any = account
    if source != "info":
        given = tmp_path / "key.json"
        given.write_text(json.dumps(account), encoding="utf-8")
    make = getattr(HedgedPublisher, f"from_service_account_{source}")
    with tls(make, given, hedging_settings=FAST) as publisher:
        assert type(publisher) is HedgedPublisher
        assert publisher.hedging_settings == FAST
        publisher.publish(TOPIC, b"data").result(timeout=5)
    authorization = str(tls.headers()["authorization"])
    payload = authorization.removeprefix("Bearer ").split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["iss"] == account["client_email"]

    async def main() -> None:
        make = getattr(AsyncHedgedPublisher, f"from_service_account_{source}")
        async with make(given, ONE_MESSAGE, hedging_settings=FAST) as publisher:
            assert type(publisher) is AsyncHedgedPublisher
            assert publisher.hedging_settings == FAST
            credentials: Any = publisher.transport._credentials
            assert credentials.service_account_email == account["client_email"]

    run(main)
