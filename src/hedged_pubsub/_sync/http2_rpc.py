"""Publish requests over HTTP/2 instead of gRPC's channels."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._core.events import Woke
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.channels import SecondChannel
from hedged_pubsub._google.http2 import Http2Client
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.http2_call import Http2Call
from hedged_pubsub._sync.http2_channel import Connector, Http2Channel
from hedged_pubsub._sync.io_thread import IoThread
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.rpc import PublishRpc, SyncPublishMethod
from hedged_pubsub._sync.workers import Workers

IO: Final = IoThread(threads.FORK_GATE, threads.LIBRARY)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=IO.reset_after_fork)


def _close_with(transport: Any, channel: Http2Channel) -> None:
    """Close the connection that stands for a client's channel when that is closed."""
    close, connection = transport.close, weakref.ref(channel)

    def close_both() -> None:
        if (one := connection()) is not None:
            one.close()
        close()

    transport.close = close_both


class Http2Method:
    """The publish method on one connection; ``start`` is that of ``SyncPublishMethod``."""

    is_plain: Final = True

    def __init__(self, client: Http2Client, channel: Http2Channel) -> None:
        self.channel = channel
        self.start = self._start
        self._client = client
        self._connector = channel.connector

    def prepare(self, request: Any) -> Any:
        """Return a request, which is serialized."""
        return request

    def arguments(self, topic: str, attempt: int, publish_start_time: float) -> Mapping[str, Any]:
        """Return what goes with a request."""
        return {"fields": self._client.fields(topic, attempt, publish_start_time)}

    def _start(self, request: bytes, timeout: float | None, *, fields: bytes) -> Http2Call:
        return self._connector.start(fields, request, timeout)


class Http2PublishRpc(PublishRpc):
    """The publish requests of one publisher, over HTTP/2.

    Raises:
        ValueError: If the publisher has something that only gRPC's channels can do.
    """

    def __init__(
        self,
        transport: PublisherGrpcTransport,
        make_channel: SecondChannel | None,
        library: LibraryThread,
        workers: Workers,
        clock: Callable[[], float],
        settings: HedgingSettings,
    ) -> None:
        self._client = Http2Client(transport, make_channel, settings.hedge_endpoint)
        self._patience = settings.initial_hedge_delay
        self._grpc = SyncPublishMethod(transport)
        super().__init__(transport, make_channel, library, workers, clock, settings)
        _close_with(transport, self._method.channel)

    def _method_on(self, channel: Any) -> Any:
        if channel is None:
            channel = self._new_channel(self._client.targets[0])
        return Http2Method(self._client, channel)

    def _new_channel(self, target: Any) -> Http2Channel:
        arguments = (self._client, target, self._library, self._workers, IO, self._clock)
        return Http2Channel(Connector(*arguments), IO)

    def _open_channel(self, _make_channel: Any) -> Any:
        return self._new_channel(self._client.targets[-1])

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        connections = self._connections
        for connection in {connections.of(0), connections.of(1), *connections.own}:
            method: Any = connection.method
            method.channel.connector.reset_after_fork()

    def woke(self, batch: PublishBatch) -> Woke:
        if batch.connection is not None and batch.run.is_hedge_due(self._clock()):
            method: Any = batch.connection.method
            method.channel.connector.probe(self._patience)
        return super().woke(batch)

    def when_ended(
        self, call: Any, callback: Callable[[Any, int, Any], object], batch: Any, attempt: int
    ) -> None:
        call.when_ended(callback, batch, attempt)

    def call(self, batch: PublishBatch, timeout: float) -> list[str]:
        """Send the original on gRPC's channel, which needs no other thread, and wait for it."""
        return self._call_with(self._grpc, batch, timeout)

    def close(self) -> None:
        super().close()
        method: Any = self._method
        method.channel.close()

    def _connect(self, channel: Any) -> bool:
        return channel.connector.is_ready()  # type: ignore[no-any-return]

    def _close_channel(self, channel: Any) -> None:
        channel.close()
