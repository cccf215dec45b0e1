"""What errors say, in the shapes in which the libraries really raise them."""

from __future__ import annotations

import email.utils
import http
import json
import math
import threading
import time
from types import SimpleNamespace
from typing import Any

import google.auth.exceptions
import grpc
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

from hedged_pubsub import server_errors
from hedged_pubsub.server_errors import http_status, is_transient, requested_wait

_URL = "https://example.com/"


class StubError(grpc.RpcError):  # type: ignore[misc]
    """What a plain gRPC stub raises."""

    def __init__(self, code: grpc.StatusCode, trailing: tuple[tuple[str, bytes], ...] = ()) -> None:
        super().__init__()
        self._code = code
        self._trailing = trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "text"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._trailing


def requests_response(status: int, headers: dict[str, str], body: bytes) -> requests.Response:
    """Make a response of requests."""
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    response._content = body
    response.request = requests.Request("GET", _URL).prepare()
    return response


def from_rest(status: int, headers: dict[str, str], body: bytes = b"{}") -> Exception:
    """Make what a client of Google's raises over REST."""
    error: Exception = exceptions.from_http_response(requests_response(status, headers, body))
    return error


def from_requests(status: int, headers: dict[str, str]) -> Exception:
    """Make what ``raise_for_status()`` of requests raises."""
    with pytest.raises(requests.HTTPError) as caught:
        requests_response(status, headers, b"").raise_for_status()
    return caught.value


def from_httpx(status: int, headers: dict[str, str]) -> Exception:
    """Make what ``raise_for_status()`` of httpx raises."""
    response = httpx.Response(status, headers=headers, request=httpx.Request("GET", _URL))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


class PlainError(Exception):
    """An error with a status and headers of its own."""

    def __init__(self, status_code: Any, headers: Any = None) -> None:
        super().__init__(status_code)
        self.status_code = status_code
        self.headers = headers


HTTP_CARRIERS = pytest.mark.parametrize(
    "carrier", [from_rest, from_requests, from_httpx, PlainError]
)


# --- Status


@HTTP_CARRIERS
@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 409, 429, 499, 500, 501, 502, 503, 504, 505]
)
def test_http_statuses(carrier: Any, status: int) -> None:
    """500, 502, 503 and 504 are transient, 429 if asked for, and nothing else."""
    error = carrier(status, {})
    assert http_status(error) == status
    assert is_transient(error) == (status in {500, 502, 503, 504})
    assert is_transient(error, too_many_requests=True) == (status in {429, 500, 502, 503, 504})


GRPC_STATUSES = {
    "INTERNAL": 500,
    "UNKNOWN": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    "RESOURCE_EXHAUSTED": 429,
    "DATA_LOSS": None,
    "CANCELLED": 499,
    "ABORTED": 409,
    "UNIMPLEMENTED": 501,
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 401,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
}


@pytest.mark.parametrize(("name", "status"), GRPC_STATUSES.items())
def test_grpc_codes(name: str, status: int | None) -> None:
    """A code is the same whether a Google client or a plain stub raised it."""
    code = grpc.StatusCode[name]
    for error in (exceptions.from_grpc_status(code, "text"), StubError(code)):
        assert http_status(error) == status
        assert is_transient(error) == (status in {500, 503, 504})
        assert is_transient(error, too_many_requests=True) == (status in {429, 500, 503, 504})


def test_every_grpc_code_is_tested() -> None:
    """A code that gRPC adds does not go unnoticed."""
    assert set(GRPC_STATUSES) == set(grpc.StatusCode.__members__) - {"OK"}


def test_statuses_that_are_none() -> None:
    """What is no whole number is no status; one of the standard library's enumeration is."""
    for odd in (None, "503", 503.0, [503]):
        assert http_status(PlainError(odd)) is None
        assert not is_transient(PlainError(odd))
    assert http_status(PlainError(http.HTTPStatus.BAD_GATEWAY)) == 502


def test_a_grpc_error_that_has_no_code() -> None:
    """The base class has none, nor details; it is not retried."""
    error = grpc.RpcError()
    assert http_status(error) is None
    assert not is_transient(error)
    assert requested_wait(error) == 0


# --- Connections


@pytest.mark.parametrize(
    "error",
    [
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
    ],
    ids=repr,
)
def test_a_connection_that_failed_is_transient(error: Exception) -> None:
    """As it is over gRPC, where it is UNAVAILABLE."""
    assert http_status(error) is None
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        OSError("disk full"),
        TimeoutError(),
        requests.exceptions.ReadTimeout(),
        httpx.ReadTimeout("slow"),
        requests.exceptions.InvalidURL(),
        httpx.UnsupportedProtocol("gopher"),
        google.auth.exceptions.RefreshError(),
        exceptions.RetryError("given up", cause=ConnectionResetError()),
    ],
    ids=repr,
)
def test_other_errors_are_not(error: Exception) -> None:
    """A request that cannot succeed, or may be at work on the server, is not sent again."""
    assert not is_transient(error, too_many_requests=True)


# --- Retry-After


@HTTP_CARRIERS
@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
def test_retry_after_in_seconds(carrier: Any, name: str) -> None:
    """The header is found however it is written."""
    assert requested_wait(carrier(503, {"Date": "today", name: "120"})) == 120
    assert requested_wait(carrier(503, {})) == 0


@HTTP_CARRIERS
@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000"])
def test_retry_after_as_a_date(carrier: Any, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A date is the time from now until then, and a past one no wait at all."""
    now = 1_700_000_000.0
    monkeypatch.setattr(server_errors, "time", SimpleNamespace(time=lambda: now))
    for offset in (90, 0, -90):
        date = email.utils.formatdate(now + offset, usegmt=True).replace("GMT", zone)
        assert requested_wait(carrier(503, {"Retry-After": date})) == max(0, offset)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "-5", "nan", "inf", "-inf", "Wed, 99 Foo 2030", "Wed, 01 Jan 0001 00:00:00 GMT"],
)
def test_a_retry_after_that_makes_no_sense(text: str) -> None:
    """It is as if there were none."""
    assert requested_wait(PlainError(503, {"Retry-After": text})) == 0


def test_headers_that_are_none() -> None:
    """Whatever stands there is looked at only if it is a mapping."""
    assert requested_wait(PlainError(503, None)) == 0
    assert requested_wait(PlainError(503, ["Retry-After", "5"])) == 0


@pytest.mark.parametrize("seconds", ["1e300", "99999999999"])
def test_a_wait_can_be_slept(seconds: str) -> None:
    """However long a server asks for, it is not more than ``time.sleep`` takes."""
    assert requested_wait(PlainError(503, {"Retry-After": seconds})) == threading.TIMEOUT_MAX


@given(st.one_of(st.text(), st.datetimes().map(email.utils.format_datetime)))
def test_any_retry_after_is_a_wait(text: str) -> None:
    """Nothing that a server may send raises, or is no time."""
    wait = requested_wait(PlainError(503, {"Retry-After": text}))
    assert 0 <= wait <= threading.TIMEOUT_MAX


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


def test_retry_info_of_a_google_client() -> None:
    """It is found among other details."""
    error = exceptions.ServiceUnavailable("busy", details=[DebugInfo(), retry_info(2.5)])
    assert requested_wait(error) == 2.5
    assert requested_wait(exceptions.ServiceUnavailable("busy", details=[DebugInfo()])) == 0
    assert requested_wait(exceptions.ServiceUnavailable("busy", details=[retry_info(-5)])) == 0


def test_retry_info_of_a_plain_stub() -> None:
    """It comes in the trailing metadata."""
    code = grpc.StatusCode.UNAVAILABLE
    error = StubError(code, status_details(code, DebugInfo(), retry_info(2.5)))
    assert requested_wait(error) == 2.5
    assert requested_wait(StubError(code)) == 0


def test_broken_details_leave_the_code() -> None:
    """Details of another code, or that are no message, are no reason to give up."""
    code = grpc.StatusCode.UNAVAILABLE
    other = status_details(grpc.StatusCode.INTERNAL, retry_info(2.5))
    garbage = (("grpc-status-details-bin", b"\xff\xff"),)
    for trailing in (other, garbage):
        error = StubError(code, trailing)
        assert is_transient(error)
        assert requested_wait(error) == 0


@pytest.mark.parametrize(
    ("delay", "wait"),
    [
        ("2.5s", 2.5),
        ("34s", 34),
        ("0.000000001s", 1e-9),
        ("soon", 0),
        ("-3s", 0),
        (7, 0),
        (None, 0),
    ],
)
def test_retry_info_over_rest(delay: object, wait: float) -> None:
    """In JSON it is a detail with a type and a text."""
    details = [
        {"@type": "type.googleapis.com/google.rpc.DebugInfo", "detail": "x"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    body = json.dumps({"error": {"message": "busy", "details": details}}).encode()
    assert requested_wait(from_rest(503, {}, body)) == pytest.approx(wait)


def test_the_longer_one_counts() -> None:
    """A server, or a proxy before it, may say both."""
    body = (
        b'{"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo",'
        b' "retryDelay": "5s"}]}}'
    )
    assert requested_wait(from_rest(503, {"Retry-After": "2"}, body)) == 5
    assert requested_wait(from_rest(503, {"Retry-After": "20"}, body)) == 20


def test_the_real_clock_is_looked_at() -> None:
    """A date is compared with the wall clock."""
    date = email.utils.formatdate(time.time() + 3600, usegmt=True)
    assert 3590 < requested_wait(PlainError(503, {"Retry-After": date})) <= 3600
