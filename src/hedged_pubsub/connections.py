"""Which connection an attempt travels on, and when a connection counts as dead.

All calls of a gRPC channel share one TCP connection. If that one is stuck, a hedge on the same
channel is stuck with the original; so hedges have a connection of their own.

The rules. There is the client's own channel, and beside it at most two that the publisher opened.

* C1: originals travel on the client's channel, hedges on another one, which is opened when the
  first batch goes out. Until it is connected, hedges travel with the originals.
* C2: a batch *overtakes* a connection if a hedge on another connection decided it. An answer to a
  publish, whether success or an error of the server, is a sign of life of its connection. Nothing
  else is: an attempt that is cancelled or times out says nothing.
* C3: a connection is dead when ``MIN_LOSSES`` batches in a row have overtaken it without a sign of
  life, the last one at least ``MIN_SILENCE`` seconds after the first. A slow service is no dead
  connection: its hedges are as slow as its originals, most of which win, and each that does starts
  the count anew.
* C4: when the connection of the originals is dead, the next originals travel on that of the
  hedges, at once. One that the publisher opened is closed when its last call has ended; the
  client's channel is the client's, and gRPC reconnects it in time.
* C5: hedges then get a new connection, once it is connected, or, if two are open already, the
  client's channel.
* C6: while batches are sent, a connection that was closed, for instance by a server because it was
  idle, is connected anew, so that no hedge waits for that.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from hedged_pubsub.events import ORIGINAL

MIN_LOSSES: Final = 5
"""Batches in a row. If one original in ten stalls, five in a row do by chance once in 100,000."""

MIN_SILENCE: Final = 0.5
"""Seconds. When a service recovers from an outage, hedges decide many batches at once; until these
seconds are over, an original has been answered too."""

MAX_OWN: Final = 2
"""Connections that the publisher opens beside the client's."""

FIRST_PAUSE: Final = 0.005
MAX_PAUSE: Final = 1.0
"""Seconds between two looks at a connection that is opening: the first, doubled each time, and the
longest, which a batch has to ask for. Connecting takes a round trip or three."""

LOOK_INTERVAL: Final = 10.0
"""Seconds between two looks at a connection that is there (C6). Servers close idle ones after some
minutes."""

Method = TypeVar("Method")


class Connection(Generic[Method]):
    """One connection, as its answers show it.

    Args:
        method: The publish method on its channel.
        own: Whether the publisher opened it, and closes it.

    Attributes:
        method: As given.
        own: As given.
        in_flight: The calls that are not known to have ended; of an own connection only.
        starting: How many calls are about to be in flight; of an own connection only.
    """

    __slots__ = ("_losses", "_silent_since", "in_flight", "method", "own", "starting")

    def __init__(self, method: Method, *, own: bool) -> None:
        self.method = method
        self.own = own
        self.in_flight: set[Any] = set()
        self.starting = 0
        self._losses = 0
        self._silent_since = 0.0

    def heard(self) -> None:
        """Take note of a sign of life."""
        self._losses = 0

    def overtaken(self, now: float) -> bool:
        """Take note that a batch has overtaken the connection.

        Args:
            now: Monotonic seconds.

        Returns:
            Whether the connection is dead (C3).
        """
        if self._losses == 0:
            self._silent_since = now
        self._losses += 1
        return self._losses >= MIN_LOSSES and now - self._silent_since >= MIN_SILENCE


class Connections(Generic[Method]):
    """The connections of one publisher. Not thread-safe but for ``of``: whoever owns it guards it.

    Args:
        method: The publish method on the client's channel.

    Attributes:
        own: The connections that the publisher opened and has not closed.
        opening: The one of them that is not connected yet.
    """

    __slots__ = ("_clients", "_hedges", "_originals", "opening", "own")

    def __init__(self, method: Method) -> None:
        self._clients = self._originals = self._hedges = Connection(method, own=False)
        self.opening: Connection[Method] | None = None
        self.own: list[Connection[Method]] = []

    def start_anew(self) -> None:
        """Forget the parent's calls, and what looked after an opening one, in a forked child."""
        self.connected()
        for connection in self.own:
            connection.in_flight.clear()
            connection.starting = 0

    def of(self, attempt: int) -> Connection[Method]:
        """Return the connection that an attempt travels on if it is sent now."""
        return self._originals if attempt == ORIGINAL else self._hedges

    def give_way(self, dead: Connection[Method]) -> bool:
        """Move the originals away from a dead connection (C4).

        Returns:
            Whether hedges need a new connection; ``False`` if there is nothing to move.
        """
        if dead is not self._originals or self._hedges is dead:
            return False
        self._originals = self._hedges
        self._originals.heard()
        return True

    def uses(self, connection: Connection[Method]) -> bool:
        """Tell whether attempts may still be sent on a connection."""
        return connection in (self._originals, self._hedges, self.opening)

    @property
    def may_open(self) -> bool:
        """Whether there may be one more."""
        return len(self.own) < MAX_OWN

    def open(self, method: Method) -> None:
        """Take note of a new connection, which nothing travels on yet."""
        self.opening = Connection(method, own=True)
        self.own.append(self.opening)

    @property
    def newest(self) -> Connection[Method] | None:
        """The own connection to look after."""
        return self.own[-1] if self.own else None

    def connected(self) -> None:
        """Send hedges on the new connection from now on (C1, C5)."""
        if self.opening is not None:
            self._hedges = self.opening
            self.opening = None

    def fall_back(self) -> None:
        """Send hedges on the client's channel, for want of a new connection (C5)."""
        self._hedges = self._clients
        self._clients.heard()

    def drained(self) -> list[Connection[Method]]:
        """Take out the own connections that nothing travels on any more; they are to be closed."""
        drained = [one for one in self.own if not (self.uses(one) or one.starting or one.in_flight)]
        self.own = [one for one in self.own if one not in drained]
        return drained
