"""The publish RPC on gRPC's synchronous channels, started without waiting for it."""

from __future__ import annotations

import contextvars
import logging
import math
import threading
from collections.abc import Callable
from typing import Any, cast

import grpc
from google.api_core import exceptions
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub._channels import MakeChannel
from hedged_pubsub._official import connect
from hedged_pubsub._rpc import PublishMethod
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.direct_call import direct_start
from hedged_pubsub._sync.driver import Call
from hedged_pubsub._sync.scheduler import Scheduler
from hedged_pubsub._sync.workers import Workers
from hedged_pubsub.connections import (
    FIRST_PAUSE,
    LOOK_INTERVAL,
    MAX_PAUSE,
    Connection,
    Connections,
)
from hedged_pubsub.events import ORIGINAL

_LOGGER = logging.getLogger(__name__)


class SyncPublishMethod(PublishMethod):
    """The publish method of one synchronous channel.

    Attributes:
        start: Starts a call; takes what gRPC's ``future`` takes.
    """

    def __init__(self, transport: PublisherGrpcTransport, channel: Any = None) -> None:
        super().__init__(transport, channel)
        future = self.multicallable.future
        self.start: Callable[..., Any]
        if self.is_plain:
            self.start = direct_start(self.multicallable)
        else:
            # Interceptors find an empty context, as on the official client's threads: who happens
            # to publish the last message of a batch, within a span perhaps, has no part in it.
            self.start = lambda *args, **kwargs: contextvars.Context().run(future, *args, **kwargs)


SyncConnection = Connection[SyncPublishMethod]


class PublishRpc:
    """The publish RPC of one publisher, and the connections that it travels on.

    Args:
        transport: Where requests go.
        make_channel: Makes a channel with a connection of its own, for hedges; ``None`` if there
            is none.
        scheduler: Looks after connections that are opening.
        workers: Open connections, and close them.
        clock: Monotonic seconds, the scheduler's.
    """

    def __init__(
        self,
        transport: PublisherGrpcTransport,
        make_channel: MakeChannel | None,
        scheduler: Scheduler,
        workers: Workers,
        clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._make_channel = make_channel
        self._scheduler = scheduler
        self._workers = workers
        self._clock = clock
        self._publish = SyncPublishMethod(transport)
        self._connections = Connections(self._publish)
        # Guards which connections there are. Nothing is called while it is held.
        self._connection_lock = threading.Lock()
        self._look_at = math.inf if make_channel is None else -math.inf
        self._closed = False

    def start_anew(self) -> None:
        """Forget the parent's calls, in a forked child; gRPC looks after the channels."""
        self._connection_lock = threading.Lock()
        self._connections.start_anew()
        self._look_at = math.inf if self._make_channel is None else -math.inf

    @property
    def is_plain(self) -> bool:
        """Whether no interceptor sits on the client's channel."""
        return self._publish.is_plain

    def prepare(self, serialized: bytes) -> Any:
        """Return a request as the client's channel takes it; all attempts share it."""
        return self._publish.prepare(serialized)

    def connection(self, attempt: int) -> SyncConnection:
        """Return the connection that an attempt travels on; it has to be started next."""
        if self._clock() >= self._look_at:
            self._begin_to_look()
        connection = self._connections.of(attempt)
        if connection.own:
            with self._connection_lock:
                connection = self._connections.of(attempt)
                connection.starting += 1  # so that it is not closed before ``start``
        return connection

    def start(
        self,
        connection: SyncConnection,
        request: Any,
        topic: str,
        attempt: int,
        publish_start_time: float,
        timeout: float | None,
    ) -> Call:
        """Start one RPC.

        Args:
            connection: What ``connection`` returned.
            request: What ``prepare`` returned.
            topic: The full name of the topic.
            attempt: 0 for the original, else the number of the hedge.
            publish_start_time: For the telemetry header; wall seconds.
            timeout: Seconds, or ``None`` for no limit.
        """
        method = connection.method
        if not connection.own:
            arguments = method.arguments(topic, attempt, publish_start_time)
            with threads.FORK_GATE:
                return cast("Call", method.start(request, timeout, **arguments))
        try:
            arguments = method.arguments(topic, attempt, publish_start_time)
            prepared = method.prepare(request)
            with threads.FORK_GATE:
                call = cast("Call", method.start(prepared, timeout, **arguments))
            connection.in_flight.add(call)
        finally:
            with self._connection_lock:
                connection.starting -= 1
        return call

    def cancel(self, call: Call) -> None:
        """Cancel an RPC if it has not ended."""
        with threads.FORK_GATE:
            cast("Any", call).cancel()
        self.ended(call)

    def ended(self, call: Call) -> None:
        """Take note that an RPC has ended, or was cancelled."""
        for connection in self._connections.own:
            if connection.in_flight:
                connection.in_flight.discard(call)
                if not self._connections.uses(connection):
                    self._close_drained()

    def overtaken(self, loser: SyncConnection, winner: SyncConnection) -> None:
        """Take note that a hedge on one connection decided a batch of another."""
        winner.heard()
        if loser is winner or not loser.overtaken(self._clock()):
            return
        with self._connection_lock:
            dead = self._connections.give_way(loser)
        if dead:
            self._workers.submit(self._replace)

    def _begin_to_look(self) -> None:
        with self._connection_lock:
            if self._look_at == math.inf:
                return  # another thread does
            self._look_at = math.inf
            is_open = self._connections.newest is not None
        self._workers.submit(self._look_after if is_open else self._open)

    def _replace(self) -> None:
        _LOGGER.warning("a connection answers nothing any more; publishing goes on on another one")
        self._open()

    def _open(self) -> None:
        """Open a connection for hedges. On a worker: it takes a millisecond or two."""
        self._close_drained()
        make_channel = self._make_channel
        with self._connection_lock:
            if self._closed or make_channel is None:
                return
            if not self._connections.may_open:
                self._connections.fall_back()
                self._look_at = self._clock() + LOOK_INTERVAL
                return
        try:
            with threads.FORK_GATE:
                channel = make_channel()
            method = SyncPublishMethod(self._transport, channel)
        except Exception:
            _LOGGER.exception("no second connection can be opened; hedges share the first one")
            with self._connection_lock:
                self._connections.fall_back()
            return
        if self._take(method):
            self._look_after()
        else:
            channel.close()

    def _take(self, method: SyncPublishMethod) -> bool:
        with self._connection_lock:
            if self._closed:
                return False
            self._connections.open(method)
            return True

    def _look_after(self, pause: float = FIRST_PAUSE) -> None:
        """Connect the newest connection unless it is, and look again in time (C1, C5, C6)."""
        connection = self._connections.newest
        if connection is None:  # closed
            return
        with threads.FORK_GATE:
            is_ready = connect(connection.method.channel)
        with self._connection_lock:
            if is_ready:
                self._connections.connected()
            if is_ready or pause >= MAX_PAUSE:
                # With the next batch after that: nobody connects for a publisher that is idle.
                self._look_at = self._clock() + (LOOK_INTERVAL if is_ready else MAX_PAUSE)
                return
        self._scheduler.call_at(self._clock() + pause, self._look_after, 2 * pause)

    def _close_drained(self) -> None:
        with self._connection_lock:
            drained = self._connections.drained()
        for connection in drained:
            # Not here: this may be gRPC's thread, which closing waits for.
            self._workers.submit(connection.method.channel.close)

    def close(self) -> None:
        """Close the connections that were opened here; the client's channel is its own to close."""
        with self._connection_lock:
            self._closed = True
            own, self._connections.own = self._connections.own, []
        for connection in own:
            connection.method.channel.close()

    def call(
        self, request: Any, topic: str, publish_start_time: float, timeout: float
    ) -> list[str]:
        """Send the original and wait for its message ids; needs no other thread.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
        """
        method = self._connections.of(ORIGINAL).method
        prepared = method.prepare(request)
        arguments = method.arguments(topic, ORIGINAL, publish_start_time)
        try:
            response = method.multicallable(prepared, timeout, **arguments)
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        return list(response.message_ids)


def message_ids(call: Call) -> list[str]:
    """Return the message ids that an ended RPC was answered with.

    Raises:
        google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
    """
    try:
        response = cast("Any", call).result()
    except grpc.RpcError as error:
        raise exceptions.from_grpc_error(error) from error
    except grpc.FutureCancelledError as error:
        raise exceptions.Cancelled("the publish request was cancelled locally") from error
    return list(response.message_ids)
