"""What an error says, whichever library raised it: is it transient, and how long to wait.

A client of Google's raises exceptions of ``google.api_core``; a plain gRPC stub ``grpc.RpcError``;
an HTTP library an error with a response, whose class nothing is imported for.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import threading
import time
from collections.abc import Mapping
from datetime import timezone
from typing import Final

import grpc
from google.api_core import exceptions
from google.api_core.retry import if_transient_error
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo

_TRANSIENT_STATUSES: Final = frozenset({500, 502, 503, 504})

_LONGEST_WAIT: Final = threading.TIMEOUT_MAX
"""Seconds; a sleep of more than this raises ``OverflowError``."""

_RETRY_INFO_TYPE: Final = "type.googleapis.com/google.rpc.RetryInfo"

# The connection errors of requests and google-auth are known to api-core. Those of httpx are known
# here by name; they are no subclasses of the built-in ConnectionError.
_HTTPX_CONNECTION_ERRORS: Final = {("httpx", "NetworkError"), ("httpx", "RemoteProtocolError")}


def is_transient(error: Exception, *, too_many_requests: bool = False) -> bool:
    """Tell whether an error is worth another attempt.

    It is if its HTTP status is 500, 502, 503 or 504, or if the connection failed before there was
    an answer, which gRPC reports as UNAVAILABLE, that is 503. The status is found on

    * exceptions of ``google.api_core`` and those of plain gRPC stubs: INTERNAL and UNKNOWN are
      500, UNAVAILABLE 503, DEADLINE_EXCEEDED 504, RESOURCE_EXHAUSTED 429. DATA_LOSS is not
      transient: what is lost does not come back;
    * whatever has ``response.status_code`` or ``status_code``, such as the errors that
      ``raise_for_status()`` of requests and httpx raises.

    Connection failures are the built-in ``ConnectionError`` and those of requests, httpx and
    google-auth. A timeout of an HTTP library is not one, as for api-core.

    Args:
        error: The error.
        too_many_requests: Whether 429 is transient too.
    """
    status = http_status(error)
    if status is None:
        return _is_connection_failure(error)
    return status in _TRANSIENT_STATUSES or (too_many_requests and status == 429)


def http_status(error: Exception) -> int | None:
    """Return the HTTP status of an error, as ``google.api_core`` maps codes; DATA_LOSS has none."""
    if isinstance(error, grpc.RpcError) and callable(getattr(error, "code", None)):
        error = exceptions.from_grpc_status(error.code(), "")
    if isinstance(error, exceptions.Unknown):  # the server's code raised something unexpected
        return 500
    if isinstance(error, exceptions.GoogleAPICallError):
        status = error.code
    else:
        status = getattr(_response(error), "status_code", None)
    return status if isinstance(status, int) else None


def _is_connection_failure(error: Exception) -> bool:
    if isinstance(error, ConnectionError) or if_transient_error(error):
        return True
    bases = {(base.__module__, base.__name__) for base in type(error).__mro__}
    return not bases.isdisjoint(_HTTPX_CONNECTION_ERRORS)


def requested_wait(error: Exception) -> float:
    """Return the longest wait in seconds that Retry-After or RetryInfo ask for, or 0."""
    if isinstance(error, grpc.RpcError):
        try:
            error = exceptions.from_grpc_error(error)
        except (AttributeError, TypeError, ValueError, DecodeError):  # no details, or broken ones
            return 0.0
    waits = [0.0]
    headers = getattr(_response(error), "headers", None)
    if isinstance(headers, Mapping):
        # A library's own mapping is case-insensitive, but a plain one will do.
        found = [value for name, value in headers.items() if str(name).lower() == "retry-after"]
        waits += [_seconds_until(str(value)) for value in found]
    if isinstance(error, exceptions.GoogleAPICallError):
        waits += map(_retry_delay, error.details or ())
    return min(max(waits), _LONGEST_WAIT)


def _response(error: Exception) -> object:
    """Return what an error of an HTTP library came from, or the error, which may say the same."""
    # "is None", because a response of requests is false if its status is an error.
    response: object = getattr(error, "response", None)
    return error if response is None else response


def _seconds_until(text: str) -> float:
    """Read a Retry-After: seconds, or a date."""
    with contextlib.suppress(ValueError):
        seconds = float(text)
        return seconds if math.isfinite(seconds) else 0.0
    try:
        date = email.utils.parsedate_to_datetime(text)
        if date.tzinfo is None:  # "-0000": UTC, from a place that does not say where it is
            date = date.replace(tzinfo=timezone.utc)
        return date.timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0


def _retry_delay(detail: object) -> float:
    """Read one detail of an error: a message if it came over gRPC, a mapping if as JSON."""
    info = RetryInfo()
    if isinstance(detail, RetryInfo):
        info = detail
    elif isinstance(detail, Mapping) and detail.get("@type") == _RETRY_INFO_TYPE:
        try:
            info.retry_delay.FromJsonString(str(detail.get("retryDelay")))
        except ValueError:
            return 0.0
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
