"""The publish RPC on gRPC's asyncio channels, past the official client's logging."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, Final

import grpc
import grpc.aio
from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub._channels import MakeChannel
from hedged_pubsub._rpc import METHOD, PublishMethod
from hedged_pubsub.connections import (
    FIRST_PAUSE,
    LOOK_INTERVAL,
    MAX_PAUSE,
    Connection,
    Connections,
)

_LOGGER = logging.getLogger(__name__)

_READY: Final = grpc.ChannelConnectivity.READY


class AsyncPublishMethod(PublishMethod):
    """The publish method of one asyncio transport's channel.

    The synchronous transport keeps a channel without its logging interceptor; the asyncio one puts
    the interceptor on the only channel that there is. It costs a task for every request and a
    request object for it to look at, and at DEBUG level it logs every payload. So it is left out
    here; the other methods of the client keep it.

    Args:
        transport: Whose method it is.
        channel: Where requests go; the transport's channel if ``None``.
        with_telemetry: Whether attempts carry the telemetry header.
    """

    def __init__(
        self, transport: PublisherTransport, channel: Any = None, *, with_telemetry: bool
    ) -> None:
        super().__init__(transport, channel, with_telemetry=with_telemetry)
        channel = self.channel
        logging = getattr(transport, "_interceptor", None)
        interceptors = getattr(channel, "_unary_unary_interceptors", None)
        if logging is None or interceptors is None or logging not in interceptors:
            return
        the_users = [interceptor for interceptor in interceptors if interceptor is not logging]
        if not the_users:
            self.is_plain = True
            self.multicallable = channel.unary_unary(
                METHOD, response_deserializer=gapic_types.PublishResponse.pb().FromString
            )
        self.multicallable._interceptors = the_users


AsyncConnection = Connection[AsyncPublishMethod]


class AsyncPublishRpc:
    """The publish RPC of one asyncio publisher, and the connections that it travels on.

    Args:
        transport: Where requests go.
        make_channel: Makes a channel with a connection of its own, for hedges; ``None`` if there
            is none.
        loop: The event loop.
        with_telemetry: Whether attempts carry the telemetry header.
    """

    def __init__(
        self,
        transport: PublisherTransport,
        make_channel: MakeChannel | None,
        loop: asyncio.AbstractEventLoop,
        *,
        with_telemetry: bool,
    ) -> None:
        self._transport = transport
        self._make_channel = make_channel
        self._loop = loop
        self._with_telemetry = with_telemetry
        self._publish = AsyncPublishMethod(transport, with_telemetry=with_telemetry)
        self._connections = Connections(self._publish)
        self._look_at = math.inf if make_channel is None else -math.inf
        self._closing: set[asyncio.Task[None]] = set()

    def prepare(self, serialized: bytes) -> Any:
        """Return a request as the client's channel takes it; all attempts share it."""
        return self._publish.prepare(serialized)

    def connection(self, attempt: int) -> AsyncConnection:
        """Return the connection that an attempt is to travel on."""
        if self._loop.time() >= self._look_at:
            self._look_at = math.inf
            is_open = self._connections.newest is not None
            # Not in the turn of the loop in which the first batch is sent.
            self._loop.call_soon(self._look_after if is_open else self._open)
        return self._connections.of(attempt)

    async def call(
        self,
        connection: AsyncConnection,
        request: Any,
        topic: str,
        attempt: int,
        publish_start_time: float,
        timeout: float | None,
    ) -> Any:
        """Send one request and wait for the answer; a cancellation cancels the RPC.

        Args:
            connection: Which it travels on.
            request: What ``prepare`` returned.
            topic: The full name of the topic.
            attempt: 0 for the original, else the number of the hedge.
            publish_start_time: For the telemetry header; wall seconds.
            timeout: Seconds, or ``None`` for no limit.

        Raises:
            grpc.RpcError: What it ended with.
        """
        method = connection.method
        prepared = method.prepare(request) if connection.own else request
        arguments = method.arguments(topic, attempt, publish_start_time)
        call = method.multicallable(prepared, timeout=timeout, **arguments)
        if connection.own:
            connection.in_flight.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            # A call that is dropped would go on at the server.
            call.cancel()
            raise
        finally:
            if connection.own:
                connection.in_flight.discard(call)
                if not self._connections.uses(connection):
                    self._close_drained()

    def overtaken(self, loser: AsyncConnection, winner: AsyncConnection) -> None:
        """Take note that a hedge on one connection decided a batch of another."""
        winner.heard()
        if loser is winner or not loser.overtaken(self._loop.time()):
            return
        if self._connections.give_way(loser):
            _LOGGER.warning(
                "a connection answers nothing any more; publishing goes on on another one"
            )
            self._loop.call_soon(self._open)

    def _open(self) -> None:
        """Open a connection for hedges."""
        self._close_drained()
        if self._make_channel is None:  # closed
            return
        if not self._connections.may_open:
            self._connections.fall_back()
            self._look_at = self._loop.time() + LOOK_INTERVAL
            return
        try:
            channel = self._make_channel()
            method = AsyncPublishMethod(
                self._transport, channel, with_telemetry=self._with_telemetry
            )
        except Exception:
            _LOGGER.exception("no second connection can be opened; hedges share the first one")
            self._connections.fall_back()
            return
        self._connections.open(method)
        self._look_after()

    def _look_after(self, pause: float = FIRST_PAUSE) -> None:
        """Connect the newest connection unless it is, and look again in time (C1, C5, C6).

        Waiting for a change of the state would leave a watch in gRPC's core, whose end is reported
        to an event loop that may be closed by then.
        """
        connection = self._connections.newest
        if connection is None:  # closed
            return
        is_ready = connection.method.channel.get_state(try_to_connect=True) is _READY
        if is_ready:
            self._connections.connected()
        if is_ready or pause >= MAX_PAUSE:
            # With the next batch after that: nobody connects for a publisher that is idle.
            self._look_at = self._loop.time() + (LOOK_INTERVAL if is_ready else MAX_PAUSE)
        else:
            self._loop.call_later(pause, self._look_after, 2 * pause)

    def _close_drained(self) -> None:
        for connection in self._connections.drained():
            task = self._loop.create_task(connection.method.channel.close())
            self._closing.add(task)  # the loop itself holds tasks weakly
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the connections that were opened here; the client's channel is its own to close."""
        self._make_channel = None
        own, self._connections.own = self._connections.own, []
        for connection in own:
            await connection.method.channel.close()
        if self._closing:
            await asyncio.wait(self._closing)
