"""Publish requests over HTTP/2 as the official client sends them: where to, with which headers."""

from __future__ import annotations

import datetime
import math
import os
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, cast

import google.auth.transport.grpc
import google.auth.transport.requests
import grpc
import grpc._channel
from google.api_core import exceptions
from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub import _version
from hedged_pubsub._google.channels import SecondChannel
from hedged_pubsub._google.method import METHOD, TELEMETRY_HEADER, encode_telemetry
from hedged_pubsub._google.official import call_arguments, is_plain_channel
from hedged_pubsub._google.token_wait import SharedToken
from hedged_pubsub._http2 import headers
from hedged_pubsub._http2.call import Call
from hedged_pubsub._http2.grpc import encode_timeout

_ROOTS_VARIABLE: Final = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
_SERVICE: Final = "google.pubsub.v1.Publisher"
_INSTEAD: Final = "leave publish_transport out, or publish_transport='grpc'"

_EARLY: Final = 60.0
"""Seconds before a token expires from which on nothing is sent with it."""

_RETRY_TOKEN: Final = 5.0
"""Seconds until a token that could not be renewed in time is asked for again."""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}

parse_answer: Final[Callable[[bytes], Any]] = gapic_types.PublishResponse.pb().FromString


class Target(NamedTuple):
    """Where a connection goes to.

    Attributes:
        host: A name or an address.
        port: Its port.
        tls: How to check the server; ``None`` without TLS.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None

    @property
    def authority(self) -> str:
        """What the ``:authority`` header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.tls and self.port == 443 else f"{host}:{self.port}"


def _split(address: str) -> tuple[str, int]:
    address = address.removeprefix("dns:///")
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        host, port = address, "443"
    return host.strip("[]"), int(port)


def _tls_context() -> ssl.SSLContext:
    roots = os.environ.get(_ROOTS_VARIABLE)
    if roots is None:
        try:
            import certifi
        except ImportError:
            pass
        else:
            roots = certifi.where()
    context = ssl.create_default_context(cafile=roots)
    context.set_alpn_protocols(["h2"])
    return context


class AccessToken:
    """The header fields of credentials: renewed before they expire, on a worker, once for all.

    Args:
        token: What the channels of a client share.
        default_host: The service's, for tokens that service accounts sign themselves.
        authority: That of the connection.
    """

    def __init__(self, token: SharedToken, default_host: str | None, authority: str) -> None:
        self._token: Any = token
        self._plugin = google.auth.transport.grpc.AuthMetadataPlugin(
            token, google.auth.transport.requests.Request(), default_host=default_host
        )
        self._service_url = f"https://{authority}/{_SERVICE}"
        self._lock = threading.Lock()
        self.block = b""
        self.usable_until = -math.inf
        self.renew_at = -math.inf

    def renew(self, now: float) -> None:
        """Renew the header fields. This blocks, and raises what google-auth raises."""
        with self._lock:
            if now < self.renew_at:
                return  # another thread has done it
            got: list[Any] = []
            context: Any = _Context(self._service_url, "Publish")
            try:
                self._plugin(context, lambda metadata, _error: got.extend(metadata))
            except Exception:
                self.renew_at = now + _RETRY_TOKEN
                raise
            self.block = headers.encode(
                (name.encode(), value.encode())
                for name, value in got
                if name != "x-goog-api-client"  # of google-auth, for its own requests
            )
            expiry = getattr(self._token, "expiry", None)
            if expiry is None:
                self.usable_until = self.renew_at = math.inf
                return
            left = (
                expiry - datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
            ).total_seconds()
            self.usable_until = now + left - _EARLY
            # As google-auth has it: 3:45 before the end, or it would return the old one.
            self.renew_at = now + max(left - 220.0, 1.0)


class _Context(NamedTuple):
    """What google-auth asks of gRPC's own."""

    service_url: str
    method_name: str


class Http2Client:
    """What all HTTP/2 connections of a publisher share.

    Raises:
        ValueError: If the publisher has something that only gRPC's channels can do.
    """

    def __init__(
        self, transport: PublisherTransport, second: SecondChannel | None, endpoint: str | None
    ) -> None:
        if second is None or second.is_customized:
            raise _refusal("a transport or a channel of the caller's")
        if not is_plain_channel(cast("Any", transport).grpc_channel):
            raise _refusal("interceptors")
        if call_arguments(transport, "topic").get("compression"):
            raise _refusal("compression")
        self._transport = transport
        self.tls: ssl.SSLContext | None = None
        emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
        arguments: Mapping[str, Any] = {}
        address = emulator or ""
        if second.arguments is not None:
            address, arguments = second.arguments
            self.tls = _tls_context()
        elif not emulator:
            raise _refusal("a channel of the caller's")
        if arguments.get("ssl_credentials") is not None:
            raise _refusal("client certificates")
        self.targets = [Target(*_split(one), self.tls) for one in (address, endpoint) if one]
        self.token: AccessToken | None = None
        if second.token is not None:
            host = arguments.get("default_host", getattr(transport, "DEFAULT_HOST", None))
            self.token = AccessToken(second.token, host, self.targets[0].authority)
        for target in self.targets:
            if self.tls is not None and _proxy_of(target.host):
                raise _refusal("a proxy, which the environment names,")
        self._of_topic: dict[str, bytes] = {}
        self._of_timeout: dict[float | None, bytes] = {}

    def first_fields(self, target: Target) -> bytes:
        """Return the header fields that all requests on a connection begin with."""
        fields = {
            ":method": "POST",
            ":scheme": "http" if target.tls is None else "https",
            ":path": METHOD,
            ":authority": target.authority,
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": f"grpc-python/{grpc.__version__} hedged-pubsub/{_version.__version__}",
        }
        return headers.encode((name.encode(), value.encode()) for name, value in fields.items())

    def fields(self, topic: str, attempt: int, publish_start_time: float) -> bytes:
        """Return the header fields of one request: what the official client sends, and ours."""
        block = self._of_topic.get(topic)
        if block is None:
            metadata = call_arguments(self._transport, topic)["metadata"]
            block = self._of_topic[topic] = headers.encode(
                (name.encode(), value.encode()) for name, value in metadata
            )
        telemetry = encode_telemetry(attempt, publish_start_time).encode()
        return b"%b%b%c%b" % (block, _TELEMETRY, len(telemetry), telemetry)

    def timeout_fields(self, timeout: float | None) -> bytes:
        """Return the header field of a timeout in seconds."""
        if timeout is None:
            return b""
        block = self._of_timeout.get(timeout)
        if block is None:
            block = headers.encode([(b"grpc-timeout", encode_timeout(timeout))])
            if len(self._of_timeout) < 64:  # those of hedges may all differ
                self._of_timeout[timeout] = block
        return block


_TELEMETRY: Final = b"\0%c%b" % (len(TELEMETRY_HEADER), TELEMETRY_HEADER.encode())
"""The name of our header field; its value, of less than 127 bytes, comes after its length."""


def _refusal(what: str) -> ValueError:
    return ValueError(f"publish_transport='http2' cannot have {what}: {_INSTEAD}")


def _proxy_of(host: str) -> str | None:
    proxies = urllib.request.getproxies_environment()
    if urllib.request.proxy_bypass_environment(host, proxies):  # type: ignore[attr-defined]
        return None
    return proxies.get("https")


def error_of(call: Call) -> Exception:
    """Return the error of a call that has failed, as the official client raises it."""
    code = _CODES.get(cast("int", call.code), grpc.StatusCode.UNKNOWN)
    state = grpc._channel._RPCState((), (), call.trailing_metadata(), code, call.details)
    error = cast("Exception", grpc._channel._InactiveRpcError(state))
    mapped: Exception = exceptions.from_grpc_error(error)
    mapped.__cause__ = error
    return mapped
