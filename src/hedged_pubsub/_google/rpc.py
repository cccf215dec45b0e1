"""The publish requests of one publisher, and the connections that they are sent on.

``connections`` has the rules. Here is what follows from them for gRPC's channels.
"""

from __future__ import annotations

import abc
import dataclasses
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Generic, TypeVar

from google.api_core import exceptions
from google.pubsub_v1.services.publisher.transports.base import PublisherTransport

from hedged_pubsub._core import log
from hedged_pubsub._core.connections import FIRST_PAUSE, Connection, Connections, Todo
from hedged_pubsub._core.events import ORIGINAL, Abandoned, Failed, Woke
from hedged_pubsub._core.runs import WOKE
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._google.batch import PublishBatch
from hedged_pubsub._google.channels import MakeChannel
from hedged_pubsub._google.method import PublishMethod
from hedged_pubsub._google.token_wait import SharedToken

M = TypeVar("M", bound=PublishMethod)

_NOT_CONNECTED: Final = ("failed to connect to", "DNS resolution failed")
"""What gRPC says where nothing was sent, because no connection could be made."""

_WOKE_IN_VAIN: Final = Woke(shares_wait=True)


class PublishRpc(abc.ABC, Generic[M]):
    """The publish requests of one publisher.

    ``make_channel`` makes a channel with a connection of its own, for hedges, unless ``settings``
    want none. ``lock`` guards which connections there are; nothing is called while it is held.

    Attributes:
        is_plain: Whether no user's code runs when a request is sent.
        on_dead: Told of a connection that answers nothing any more, soon. What is in flight on it
            counts as UNAVAILABLE (R17).
    """

    method_class: ClassVar[type[PublishMethod]]

    def __init__(
        self,
        transport: PublisherTransport,
        make_channel: MakeChannel | None,
        *,
        lock: AbstractContextManager[Any],
        clock: Callable[[], float],
        with_telemetry: bool = True,
        settings: HedgingSettings | None = None,
    ) -> None:
        self._transport = transport
        self._make_channel = make_channel
        self._token: SharedToken | None = getattr(make_channel, "token", None)
        self._lock = lock
        self._clock = clock
        self._with_telemetry = with_telemetry
        self._can_open = make_channel is not None and (
            settings is None or (settings.second_connection and not settings.observe_only)
        )
        self._has_endpoint = settings is not None and settings.hedge_endpoint is not None
        self.on_dead: Callable[[Connection[M]], object] = lambda _: None
        self._connect_client()

    def _connect_client(self) -> None:
        """Begin with the channel that the client's transport has now."""
        self._method = self._method_on(None)
        self.is_plain = self._method.is_plain
        self._connections = Connections(
            self._method, can_open=self._can_open, has_endpoint=self._has_endpoint
        )

    def _method_on(self, channel: Any) -> M:
        make: Any = self.method_class
        method: M = make(self._transport, channel, with_telemetry=self._with_telemetry)
        return method

    def commit(self, batch: PublishBatch) -> None:
        """Make the request of a batch, which all its attempts share, and start the RPC's span."""
        if batch.tracing is not None:
            batch.tracing.start()
        batch.request = self._method.prepare(batch.serialize())

    def begin(
        self, batch: PublishBatch, attempt: int, timeout: float | None
    ) -> tuple[Connection[M], float | None]:
        """Return an attempt's connection, and its timeout in seconds; call ``started`` next."""
        connections, which = self._connections, attempt
        if attempt == ORIGINAL:
            timeout = batch.next_timeout()
            if batch.is_unavailable:
                self._fail_over()
            if connections.home is not None:
                self._check_home(connections.home)
        else:
            if batch.tracing is not None:
                batch.tracing.hedged(attempt)
            ready = self._ready()
            if ready == (True, False) or (ready[0] and connections.may_be_stuck(batch.last_hedge)):
                which = ORIGINAL
        if self._clock() >= connections.check_at:
            self._begin_check()
        connection = connections.of(which)
        if connection.own:
            with self._lock:
                connection = connections.of(which)
                connection.starting += 1  # so that it is not closed before ``started``
        if attempt == ORIGINAL:
            batch.connection = connection
        else:
            batch.last_hedge = connections.heard(connection)
            batch.hedge_connections = {**batch.hedge_connections, attempt: connection}
        return connection, timeout

    def started(self, connection: Connection[M], call: object) -> None:
        """Take note of a request that was started on an own connection; ``None`` for an error."""
        if call is not None:
            connection.in_flight.add(call)
        with self._lock:
            connection.starting -= 1

    def ended(self, call: object) -> None:
        """Take note that a request has ended, or was cancelled."""
        if self._connections.own and self._connections.ended(call):
            self._close_drained()

    def woke(self, batch: PublishBatch, batches: Mapping[int, PublishBatch]) -> Woke:
        """Return the event of a batch whose timer is due: whether a hedge would wait (R14).

        ``batches`` are all that are under way.
        """
        now, connection = self._clock(), batch.connection
        if not batch.run.is_hedge_due(now):
            return WOKE
        if connection is not None and connection.is_silent(now):
            self._check_silence(connection, batches)
        if self._token is not None and self._token.is_awaited:
            return _WOKE_IN_VAIN
        originals_ready, hedges_ready = self._ready()
        if hedges_ready and not originals_ready:
            with self._lock:
                self._connections.fail_over()
        return WOKE if originals_ready or hedges_ready else _WOKE_IN_VAIN

    def judge(self, batch: PublishBatch, error: BaseException) -> Failed | Abandoned:
        """Ask the retry policy about an error of the original, and add what its connection says.

        Runs a user's code.
        """
        verdict, connection = batch.judge(error), batch.connection
        batch.is_unavailable = False
        if not isinstance(error, exceptions.ServiceUnavailable) or not isinstance(verdict, Failed):
            return verdict
        if connection is None or (
            connection is self._connections.of(ORIGINAL)
            and self._connect(connection.method.channel)
        ):
            return verdict  # it came from the service
        batch.is_unavailable = True
        unsent = any(words in str(error) for words in _NOT_CONNECTED)
        # Where another one is connected, one that could not be used is as good as lost.
        is_lost = self._fail_over() or not unsent
        return dataclasses.replace(verdict, unsent=unsent, connection_lost=is_lost)

    def _check_silence(self, silent: Connection[M], batches: Mapping[int, PublishBatch]) -> None:
        unanswered = sum(
            batch.run.original_sent_at <= silent.silent_since
            for batch in in_flight_on(silent, batches)
        )
        if silent.has_lost(unanswered):
            with self._lock:
                is_dead = self._connections.replace(silent)
            if is_dead:
                self._is_dead(silent)

    def _is_dead(self, connection: Connection[M]) -> None:
        self._soon(self._replace)
        self._later(0, self.on_dead, connection)

    def close_soon(self) -> None:
        """Close the connections that were opened here. Returns at once."""
        with self._lock:
            own = self._connections.close()
        for connection in own:
            self._close_channel(connection.method.channel)

    def release(self) -> None:
        """Let go of all channels: the publisher was dropped, and all is decided.

        gRPC closes a channel that nobody holds; the client's may be the user's, who holds it.
        """
        nothing: Any = None
        with self._lock:
            self._connections.close()
            self._connections = Connections(nothing, can_open=False)
            self._connections.close()
        self._transport = self._method = self._make_channel = nothing

    def _ready(self) -> tuple[bool, bool]:
        """Tell whether the connections of originals and of hedges are connected."""
        originals, hedges = self._connections.of(ORIGINAL), self._connections.of(1)
        is_ready = self._connect(originals.method.channel)
        return is_ready, is_ready if hedges is originals else self._connect(hedges.method.channel)

    def _fail_over(self) -> bool:
        """Let originals fail over if that helps; tell whether it does (C7)."""
        if self._ready() != (False, True):
            return False
        with self._lock:
            self._connections.fail_over()
        return True

    def _check_home(self, home: Connection[M]) -> None:
        is_ready = self._connect(home.method.channel)
        with self._lock:
            self._connections.check_home(is_ready=is_ready)

    def stored(self, batch: PublishBatch, attempt: int) -> None:
        """Take note of the attempt whose answer decided a batch."""
        loser = batch.connection
        winner = batch.hedge_connections.get(attempt, loser)
        if attempt == ORIGINAL or winner is loser:
            if loser is not None:
                loser.answered()
        elif loser is not None and winner is not None:
            with self._lock:
                is_dead = self._connections.lost(loser, winner, self._clock())
            if is_dead:
                self._is_dead(loser)

    def _begin_check(self) -> None:
        with self._lock:
            todo = self._connections.begin_check()
        if todo is Todo.OPEN:
            self._soon(self._open)
        elif todo is Todo.CONNECT:
            self._later(0, self._check)

    def _replace(self) -> None:
        self._open()
        text = "a connection answers nothing any more; publishing goes on on another one"
        log.write(logging.WARNING, text)

    def _open(self) -> None:
        self._close_drained()
        with self._lock:
            may_open = self._connections.may_open(self._clock())
        if not may_open or self._make_channel is None:
            return
        try:
            channel = self._open_channel(self._make_channel)
            method = self._method_on(channel)
        except Exception as error:  # noqa: BLE001 - a transport may be the user's
            with self._lock:
                self._connections.use_clients()
            text = "no second connection can be opened; hedges share the first one"
            log.write(logging.ERROR, text, error=error)
            return
        with self._lock:
            is_wanted = self._connections.opened(method)
        if is_wanted:
            self._later(0, self._check)
        else:
            self._close_channel(channel)

    def _check(self, pause: float = FIRST_PAUSE) -> None:
        """Connect the newest connection unless it is connected, and check again in time."""
        connection = self._connections.newest
        if connection is None:  # closed
            return
        is_ready = self._connect(connection.method.channel)
        with self._lock:
            again = self._connections.checked(is_ready=is_ready, pause=pause, now=self._clock())
        if again:
            self._later(pause, self._check, 2 * pause)

    def _close_drained(self) -> None:
        with self._lock:
            drained = self._connections.drained()
        for connection in drained:
            self._close_channel(connection.method.channel)

    def _open_channel(self, make_channel: MakeChannel) -> Any:
        return make_channel()

    @abc.abstractmethod
    def _soon(self, function: Callable[[], object]) -> None:
        """Call something that takes a millisecond or two and may run a user's code."""

    @abc.abstractmethod
    def _later(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        """Call something that takes no time."""

    @abc.abstractmethod
    def _connect(self, channel: Any) -> bool:
        """Begin to connect a channel that is not connected, and tell whether it is."""

    @abc.abstractmethod
    def _close_channel(self, channel: Any) -> None:
        """Close a channel soon."""


def in_flight_on(
    connection: Connection[Any], batches: Mapping[int, PublishBatch]
) -> list[PublishBatch]:
    """Return the batches whose originals are in flight on a connection."""
    return [
        batch
        for batch in list(batches.values())
        if batch.connection is connection and ORIGINAL in batch.run.in_flight
    ]


def no_answer() -> Exception:
    """Return the error of a request on a connection that is dead."""
    error: Exception = exceptions.ServiceUnavailable("the connection answers nothing any more")
    return error
