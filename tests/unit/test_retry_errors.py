"""What errors say, in the shapes in which the libraries really raise them."""

from __future__ import annotations

import email.utils
import http
import json
import math
import threading
import time
from typing import Any

import google.auth.exceptions
import grpc
import grpc._channel
import httpx
import pytest
import requests
from google.api_core import exceptions
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import DebugInfo, RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.retry.errors import http_status, is_transient, requested_wait


def from_stub(code: grpc.StatusCode, trailing: tuple[tuple[str, bytes], ...] = ()) -> Exception:
    """Make what a plain gRPC stub raises."""
    state = grpc._channel._RPCState((), (), trailing, code, "text")
    error: Exception = grpc._channel._InactiveRpcError(state)
    return error


def from_rest(status: int, headers: dict[str, str], body: bytes = b"{}") -> Any:
    """Make what a client of Google's raises over REST."""
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    response._content = body
    response.request = requests.Request("GET", "https://example.com/").prepare()
    return exceptions.from_http_response(response)


class PlainError(Exception):
    """An error with a status and headers of its own."""

    def __init__(self, status_code: Any, headers: Any = None) -> None:
        super().__init__(status_code)
        self.status_code = status_code
        self.headers = headers


# Errors of requests and httpx, as they are raised, come from tests/system/retry.
HTTP_CARRIERS = pytest.mark.parametrize("carrier", [from_rest, PlainError])


# --- Status


@HTTP_CARRIERS
def test_http_statuses(carrier: Any) -> None:
    """500, 502, 503 and 504 are transient, 429 if asked for, and nothing else."""
    for status in (400, 401, 403, 404, 409, 429, 499, 500, 501, 502, 503, 504, 505):
        error = carrier(status, {})
        assert http_status(error) == status
        assert is_transient(error) == (status in {500, 502, 503, 504})
        assert is_transient(error, too_many_requests=True) == (status in {429, 500, 502, 503, 504})


GRPC_CODES = {
    500: "INTERNAL UNKNOWN",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    400: "INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED ALREADY_EXISTS",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    None: "DATA_LOSS",
}
GRPC_STATUSES = {name: status for status, names in GRPC_CODES.items() for name in names.split()}


def test_grpc_codes() -> None:
    """A code is the same whether a Google client or a plain stub raised it; every code is known."""
    for code in set(grpc.StatusCode) - {grpc.StatusCode.OK}:
        status = GRPC_STATUSES[code.name]
        for error in (exceptions.from_grpc_status(code, "text"), from_stub(code)):
            assert http_status(error) == status, code
            assert is_transient(error) == (status in {500, 503, 504})
            assert is_transient(error, too_many_requests=True) == (status in {429, 500, 503, 504})


def test_errors_without_a_status() -> None:
    """What is no whole number is no status, and gRPC's base class has none; they say nothing."""
    for error in (*map(PlainError, (None, "503", 503.0, [503])), grpc.RpcError()):
        assert http_status(error) is None
        assert not is_transient(error)
        assert requested_wait(error) == 0
    assert http_status(PlainError(http.HTTPStatus.BAD_GATEWAY)) == 502


# --- Connections


FAILED_CONNECTIONS = [
    ConnectionRefusedError(),
    ConnectionResetError(),
    BrokenPipeError(),
    requests.ConnectionError(),
    requests.exceptions.ConnectTimeout(),
    requests.exceptions.ChunkedEncodingError(),
    google.auth.exceptions.TransportError(),
    httpx.ConnectError("refused"),
    httpx.ReadError("reset"),
    httpx.RemoteProtocolError("closed without an answer"),
]
OTHER_ERRORS = [
    ValueError(),
    OSError("disk full"),
    TimeoutError(),
    requests.exceptions.ReadTimeout(),
    httpx.ReadTimeout("slow"),
    requests.exceptions.InvalidURL(),
    httpx.UnsupportedProtocol("gopher"),
    google.auth.exceptions.RefreshError(),
    exceptions.RetryError("given up", cause=ConnectionResetError()),
]


@pytest.mark.parametrize("error", [*FAILED_CONNECTIONS, *OTHER_ERRORS], ids=repr)
def test_connections_that_failed_are_transient(error: Exception) -> None:
    """As over gRPC; a request that cannot succeed, or may be at work on the server, is not."""
    assert http_status(error) is None
    assert is_transient(error) == (error in FAILED_CONNECTIONS)
    assert is_transient(error, too_many_requests=True) == (error in FAILED_CONNECTIONS)


# --- Retry-After


@HTTP_CARRIERS
def test_retry_after(carrier: Any) -> None:
    """The header is found however it is written, with seconds or a date, or it is not there."""
    for name in ("Retry-After", "retry-after", "RETRY-AFTER"):
        assert requested_wait(carrier(503, {"Date": "today", name: "120"})) == 120
    assert requested_wait(carrier(503, {})) == 0
    for zone in ("GMT", "+0000", "-0000"):
        for offset, least in ((3600, 3500), (0, 0), (-90, 0)):
            date = email.utils.formatdate(time.time() + offset, usegmt=True).replace("GMT", zone)
            wait = requested_wait(carrier(503, {"Retry-After": date}))
            assert least <= wait <= max(0, offset), date


@pytest.mark.parametrize(
    "text",
    ["", "soon", "-5", "nan", "inf", "-inf", "Wed, 99 Foo 2030", "Wed, 01 Jan 0001 00:00:00 GMT"],
)
def test_a_retry_after_that_makes_no_sense(text: str) -> None:
    """It is as if there were none, or no headers."""
    for headers in ({"Retry-After": text}, ["Retry-After", "5"], None):
        assert requested_wait(PlainError(503, headers)) == 0


@given(st.one_of(st.text(), st.datetimes().map(email.utils.format_datetime)))
def test_any_retry_after_is_a_wait(text: str) -> None:
    """Nothing that a server may send raises, or is no time that can be slept."""
    wait = requested_wait(PlainError(503, {"Retry-After": text}))
    assert 0 <= wait <= threading.TIMEOUT_MAX
    assert requested_wait(PlainError(503, {"Retry-After": "1e300"})) == threading.TIMEOUT_MAX


# --- RetryInfo


def retry_info(seconds: float) -> RetryInfo:
    """Make the message."""
    delay = Duration(seconds=math.floor(seconds), nanos=round(seconds % 1 * 1e9))
    return RetryInfo(retry_delay=delay)


def status_details(code: grpc.StatusCode, *details: Any) -> tuple[tuple[str, bytes], ...]:
    """Make trailing metadata as a gRPC server sends it."""
    status = Status(code=code.value[0], message="text")
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    return (("grpc-status-details-bin", status.SerializeToString()),)


@pytest.mark.parametrize(
    ("details", "wait"),
    [
        ([DebugInfo(), retry_info(2.5)], 2.5),
        ([retry_info(3), retry_info(2.5)], 3),
        ([DebugInfo()], 0),
        ([retry_info(-5)], 0),
        ([], 0),
    ],
)
def test_retry_info_over_grpc(details: list[Any], wait: float) -> None:
    """It is found among other details, of a client's error and in a stub's trailing metadata."""
    assert requested_wait(exceptions.ServiceUnavailable("busy", details=details)) == wait
    code = grpc.StatusCode.UNAVAILABLE
    assert requested_wait(from_stub(code, status_details(code, *details))) == wait
    assert requested_wait(from_stub(code)) == 0


def test_broken_details_leave_the_code() -> None:
    """Details of another code, or that are no message, are no reason to give up."""
    other = status_details(grpc.StatusCode.INTERNAL, retry_info(2.5))
    for trailing in (other, (("grpc-status-details-bin", b"\xff\xff"),)):
        error = from_stub(grpc.StatusCode.UNAVAILABLE, trailing)
        assert is_transient(error)
        assert requested_wait(error) == 0


@pytest.mark.parametrize(
    ("delay", "wait"),
    [("2.5s", 2.5), ("34s", 34), ("0.000000001s", 1e-9)]
    + [(odd, 0) for odd in ("soon", "-3s", 7, None)],
)
def test_retry_info_over_rest(delay: object, wait: float) -> None:
    """In JSON it is a detail with a type and a text; a proxy before the server may say both."""
    details = [
        {"@type": "type.googleapis.com/google.rpc.DebugInfo", "retryDelay": "99s"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    body = json.dumps({"error": {"message": "busy", "details": details}}).encode()
    for header in (0, 2, 40):
        error = from_rest(503, {"Retry-After": str(header)}, body)
        assert requested_wait(error) == pytest.approx(max(wait, header))
