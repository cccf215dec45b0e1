"""TLS in front of the test server, with certificates of an authority of the test's own."""

from __future__ import annotations

import concurrent.futures
import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CLIENT_HEADER = "x-test-client-certificate"
"""Metadata by which the server behind learns the common name of the client's certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its private key, both in PEM format."""

    chain: bytes
    key: bytes


class Authority:
    """A certificate authority that nobody else trusts."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("the test's authority")
        certificate = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.root = certificate.public_bytes(serialization.Encoding.PEM)
        """What a client that trusts it is given, in PEM format."""

    def issue(self, common_name: str) -> Certificate:
        """Issue a certificate for a client, or for a server on ``localhost``."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(common_name), key.public_key(), is_authority=False)
        return Certificate(
            chain=certificate.public_bytes(serialization.Encoding.PEM),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Make the authority that the tests of a module trust."""
    return Authority()


@contextmanager
def tls_server(
    address: str, authority: Authority, *, client_certificates: bool = False
) -> Iterator[str]:
    """Serve with TLS what is served without at ``address``; yields the address to connect to.

    The authority issues the server's certificate, and is whom clients' are checked against.
    """
    certificate = authority.issue("localhost")
    credentials = grpc.ssl_server_credentials(
        [(certificate.key, certificate.chain)],
        authority.root,
        require_client_auth=client_certificates,
    )
    pool = concurrent.futures.ThreadPoolExecutor(16)
    with grpc.insecure_channel(address) as channel, pool:
        server = grpc.server(pool, handlers=[_Forward(channel)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        try:
            yield f"localhost:{port}"
        finally:
            server.stop(0).wait()


class _Forward(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes unary calls on as they are, metadata, deadline and cancellation included."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        method = self._channel.unary_unary(handler_call_details.method)

        def forward(request: bytes, context: grpc.ServicerContext) -> bytes:
            metadata = [pair for pair in context.invocation_metadata() if pair[0] != "user-agent"]
            names = context.auth_context().get("x509_common_name", ())
            metadata += [(CLIENT_HEADER, name.decode()) for name in names]
            call = method.future(request, context.time_remaining(), metadata)
            context.add_callback(call.cancel)
            try:
                answer: bytes = call.result()
            except grpc.RpcError:
                context.set_code(call.code())
                context.set_details(call.details())
            except grpc.FutureCancelledError:  # as our own client did
                context.set_code(grpc.StatusCode.CANCELLED)
            else:
                return answer
            return b""

        return grpc.unary_unary_rpc_method_handler(forward)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
