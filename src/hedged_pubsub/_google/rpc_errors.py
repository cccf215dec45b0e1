"""Errors of publish requests, as the official client raises them."""

from __future__ import annotations

from typing import Any

import grpc
import grpc._channel
from google.api_core import exceptions

UNREADABLE = "Exception deserializing response!"
"""What grpcio says of an answer that it cannot read; it logs why."""


def official_error(error: Any) -> Exception:
    """Return the exception that api-core makes of a ``grpc.RpcError``.

    One whose ``grpc-status-details-bin`` cannot be read is told by its status. For such api-core
    raises an error of its parser, which no retry takes for what it is and which ends the official
    client's thread: its futures stay pending for ever.
    """
    try:
        made: Exception = exceptions.from_grpc_error(error)
    except Exception:  # noqa: BLE001 - whatever the parser raises
        made = exceptions.from_grpc_status(
            error.code(), error.details(), errors=(error,), response=error
        )
    return made


def as_if_waited_for(error: Any) -> Any:
    """Return the error that grpcio raises for a call that is waited for.

    That of one that was started with ``future()``, as calls behind interceptors are, is the call.
    """
    if type(error) is not getattr(grpc._channel, "_MultiThreadedRendezvous", None):
        return error
    return grpc._channel._InactiveRpcError(error._state)


def unreadable_answer() -> Exception:
    """Return the error for an answer that cannot be read, of which grpc.aio makes None."""
    code, nothing = grpc.StatusCode.INTERNAL, grpc.aio.Metadata()
    return official_error(grpc.aio.AioRpcError(code, nothing, nothing, UNREADABLE))
