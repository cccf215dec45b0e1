"""Which transport publish requests are sent with: gRPC's, or HTTP/2 where that is asked for."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

from hedged_pubsub._core import log

if TYPE_CHECKING:
    from hedged_pubsub._sync.rpc import PublishRpc

VARIABLE: Final = "HEDGED_PUBSUB_PUBLISH_TRANSPORT"


def over_http2(wanted: str | None, arguments: tuple[Any, ...]) -> PublishRpc | None:
    """Return publish requests over HTTP/2, or ``None`` for gRPC.

    ``arguments`` are those of ``PublishRpc``. Raise ValueError if it was asked for by argument and
    cannot be; if the environment asks for it, write a line.
    """
    chosen = (
        os.environ.get(VARIABLE, "grpc").strip().lower() or "grpc" if wanted is None else wanted
    )
    if chosen == "grpc":
        return None
    try:
        return _make(chosen, arguments)
    except ValueError as error:
        if wanted is not None:
            raise
        log.write(logging.WARNING, "%s=%s: publishing with gRPC: %s", VARIABLE, chosen, str(error))
        return None


def _make(chosen: str, arguments: tuple[Any, ...]) -> PublishRpc:
    if chosen != "http2":
        raise ValueError(f"publish_transport must be 'grpc' or 'http2'; got {chosen!r}")
    try:
        from hedged_pubsub._sync.http2_rpc import Http2PublishRpc
    except ModuleNotFoundError as error:
        if error.name != "hpack":
            raise
        raise ValueError(
            "publish_transport='http2' needs hpack: pip install 'hedged-pubsub[http2]'"
        ) from error
    return Http2PublishRpc(*arguments)
