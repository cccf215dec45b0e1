"""Which connection an attempt is sent on, and when a connection counts as dead.

All calls of a gRPC channel share one TCP connection. If that one is stuck, a hedge on the same
channel is stuck with the original; so hedges have a connection of their own.

The rules. There is the client's own channel, and beside it at most two that the publisher opened.

* C1: originals are sent on the client's channel, hedges on another one, which is opened when the
  first batch goes out. Until it is connected, hedges are sent where the originals are. So is a
  hedge if the batch's last one got no answer on that connection, nor has anything else since, while
  that of the originals has answered: it may be the hedges' own connection that is stuck. One that
  has an endpoint of its own is used all the same.
* C2: a connection *loses* a batch to a hedge on another connection that decided it. It *answers*
  with a success or an error of the server. Nothing else counts: an attempt that is cancelled or
  times out says nothing about its connection.
* C3: a connection is dead when it lost ``MIN_LOSSES`` batches in a row without an answer, the last
  one at least ``MIN_SILENCE`` seconds after the first. So long after the first, originals that were
  in flight on it then and are now count as lost as well, so that one token will do. A slow service
  is no dead connection: its hedges are as slow as its originals, most of which win, and each that
  does starts the count again.
* C4: when the connection of the originals is dead, the next originals are sent on that of the
  hedges, at once. One that the publisher opened is closed when its last call has ended; the
  client's channel is the client's, and gRPC reconnects it in time.
* C5: hedges then get a new connection, once it is connected, or, if two are open already, the
  client's channel.
* C6: while batches are sent, a connection that was closed, for instance by a server because it was
  idle, is connected again, so that no hedge waits for that.
* C7: where the originals' connection is not connected and that of the hedges is, originals *fail
  over* to it when one is sent again after UNAVAILABLE, or its hedge timer is due (R17). They go
  home once their own connection is connected again. While that of the hedges is not connected,
  hedges are sent where the originals are.
"""

from __future__ import annotations

import enum
import math
from typing import Any, Final, Generic, TypeVar

from hedged_pubsub._core.events import ORIGINAL

MIN_LOSSES: Final = 5
"""Batches in a row. If one original in ten stalls, five in a row do by chance once in 100,000."""

MIN_SILENCE: Final = 0.5
"""Seconds. When a service recovers from an outage, hedges decide many batches at once; until these
seconds are over, an original has been answered too."""

MAX_OWN: Final = 2
"""Connections that the publisher opens beside the client's."""

FIRST_PAUSE: Final = 0.005
MAX_PAUSE: Final = 1.0
"""Seconds between two checks of a connection that is opening: the first, doubled each time, and the
longest, after which the next batch asks for a check. Connecting takes a round trip or three."""

CHECK_INTERVAL: Final = 10.0
"""Seconds between two checks of a connection that is there (C6). Servers close idle ones after some
minutes."""


class Todo(enum.Enum):
    """What to do about the connections."""

    OPEN = "open one for hedges"
    CONNECT = "connect the newest one unless it is connected"


Method = TypeVar("Method")

Heard = tuple["Connection[Any]", int, int]
"""The connection of a hedge, and how many answers came on it, and on that of the originals, before
it was sent."""


class Connection(Generic[Method]):
    """One connection, as its answers show it.

    Attributes:
        method: The publish method on its channel.
        own: Whether the publisher opened it, and closes it. Only then are calls counted:
        in_flight: The calls that are not known to have ended.
        starting: How many calls are about to be in flight.
        answers: How many answers of the service came on it.
        silent_since: When it lost a batch first since its last answer, if it has.
    """

    __slots__ = (
        "_losses",
        "answers",
        "in_flight",
        "method",
        "own",
        "silent_since",
        "starting",
    )

    def __init__(self, method: Method, *, own: bool) -> None:
        self.method = method
        self.own = own
        self.in_flight: set[Any] = set()
        self.starting = 0
        self.answers = 0
        self._losses = 0

    def answered(self) -> None:
        """Take note of an answer of the service on it."""
        self.answers += 1
        self._losses = 0

    def lost(self, now: float) -> bool:
        """Take note that a hedge elsewhere decided a batch; return whether this is dead (C3)."""
        if self._losses == 0:
            self.silent_since = now
        self._losses += 1
        return self.is_silent(now) and self.has_lost()

    def is_silent(self, now: float) -> bool:
        """Tell whether a batch was lost some time ago, and nothing was answered since (C3)."""
        return self._losses > 0 and now - self.silent_since >= MIN_SILENCE

    def has_lost(self, unanswered: int = 0) -> bool:
        """Tell whether enough batches were lost, with so many that are in flight (C3)."""
        return self._losses + unanswered >= MIN_LOSSES


class Connections(Generic[Method]):
    """The connections of one publisher: told what happens to them, it says what to do.

    Whoever owns it sees to it that one thread at a time is in here, but for ``of``.

    Attributes:
        has_endpoint: Whether hedges have an endpoint of their own.
        home: The originals' own connection while they are sent elsewhere until it is back.
        own: The connections that the publisher opened and has not closed.
        opening: The one of them that is not connected yet.
        check_at: When ``begin_check`` is due, in monotonic seconds.
    """

    __slots__ = (
        "_can_open",
        "_clients",
        "_closed",
        "_hedges",
        "_home_was_down",
        "_originals",
        "check_at",
        "has_endpoint",
        "home",
        "opening",
        "own",
    )

    def __init__(self, method: Method, *, can_open: bool, has_endpoint: bool = False) -> None:
        self._clients = self._originals = self._hedges = Connection(method, own=False)
        self._can_open = can_open
        self.has_endpoint = has_endpoint
        self.home: Connection[Method] | None = None
        self._home_was_down = False
        self._closed = False
        self.opening: Connection[Method] | None = None
        self.own: list[Connection[Method]] = []
        self.check_at = -math.inf if can_open else math.inf

    @property
    def methods(self) -> list[Method]:
        """The publish methods on all connections, the client's first."""
        return [one.method for one in (self._clients, *self.own)]

    def of(self, attempt: int) -> Connection[Method]:
        """Return the connection that an attempt is to be sent on now."""
        return self._originals if attempt == ORIGINAL else self._hedges

    def uses(self, connection: Connection[Method]) -> bool:
        """Tell whether attempts may still be sent on a connection."""
        return connection in (self._originals, self._hedges, self.opening, self.home)

    def heard(self, connection: Connection[Method]) -> Heard:
        """Return what ``may_be_stuck`` is to know of a hedge that is sent on a connection now."""
        return connection, connection.answers, self._originals.answers

    def may_be_stuck(self, last_hedge: Heard | None) -> bool:
        """Tell whether the hedges' connection may be, as a batch's last hedge on it shows (C1)."""
        if last_hedge is None or self.has_endpoint:
            return False
        connection, answers, originals_answers = last_hedge
        return (
            connection is self._hedges
            and connection.answers == answers
            and self._originals.answers > originals_answers
        )

    def fail_over(self) -> None:
        """Send originals on the hedges' connection, which alone is connected (C7)."""
        if self._originals is not self._hedges:
            self.home, self._home_was_down = self._originals, True
            self._originals = self._hedges

    def check_home(self, *, is_ready: bool) -> None:
        """Send originals on their own connection once it is connected again (C7)."""
        if not is_ready:
            self._home_was_down = True
        elif self.home is not None and self._home_was_down:
            self._originals, self.home = self.home, None

    def begin_check(self) -> Todo | None:
        """Tell what to do once ``check_at`` has passed; ``None`` if another thread was faster."""
        if self.check_at == math.inf:
            return None
        self.check_at = math.inf
        return Todo.CONNECT if self.own else Todo.OPEN

    def lost(self, loser: Connection[Method], winner: Connection[Method], now: float) -> bool:
        """Take note that a hedge on one connection decided a batch of another (C2).

        Return whether the loser is dead, and its originals are sent on another one from now on
        (C4), so that hedges need a new connection.
        """
        winner.answered()
        return loser is not winner and loser.lost(now) and self.replace(loser)

    def replace(self, loser: Connection[Method]) -> bool:
        """Send originals on the hedges' connection, as theirs is dead; return False if it is not.

        It may be another one that is.
        """
        if loser is not self._originals or self._hedges is loser:
            return False
        if self.has_endpoint and not loser.own:
            self.home, self._home_was_down = loser, False
        else:
            self.home = None
        self._originals = self._hedges
        self._originals.answered()
        return True

    def may_open(self, now: float) -> bool:
        """Tell whether a connection is to be opened; if not, hedges get the client's (C5)."""
        if self._closed or not self._can_open:
            return False
        if len(self.own) < MAX_OWN:
            return True
        self.use_clients()
        self.check_at = now + CHECK_INTERVAL
        return False

    def use_clients(self) -> None:
        """Send hedges on the client's connection, because no other can be opened (C5)."""
        self._hedges = self._clients
        self._clients.answered()

    def opened(self, method: Method) -> bool:
        """Take note of a new connection; return False if it is to be closed, as the rest was."""
        if not self._closed:
            self.opening = Connection(method, own=True)
            self.own.append(self.opening)
        return not self._closed

    @property
    def newest(self) -> Connection[Method] | None:
        """The own connection that is to be connected."""
        return self.own[-1] if self.own else None

    def checked(self, *, is_ready: bool, pause: float, now: float) -> bool:
        """Take note of whether the newest connection is connected (C1, C5, C6).

        Return whether it is to be checked again after the pause, in seconds.
        """
        if is_ready:
            self._connected()
        elif pause < MAX_PAUSE:
            return True
        # With the next batch after that: nobody connects for a publisher that is idle.
        self.check_at = now + (CHECK_INTERVAL if is_ready else MAX_PAUSE)
        return False

    def _connected(self) -> None:
        if self.opening is not None:
            self._hedges = self.opening
            self.opening = None

    def ended(self, call: object) -> bool:
        """Take note that a call has ended; tell whether ``drained`` may have something."""
        for connection in self.own:
            if call in connection.in_flight:
                connection.in_flight.discard(call)
                return not self.uses(connection)
        return False

    def drained(self) -> list[Connection[Method]]:
        """Take out the own connections that nothing is sent on any more; they are to be closed."""
        drained = [one for one in self.own if not (self.uses(one) or one.starting or one.in_flight)]
        self.own = [one for one in self.own if one not in drained]
        return drained

    def close(self) -> list[Connection[Method]]:
        """Take out all own connections, and open no more; they are to be closed."""
        self._closed = True
        self._originals = self._hedges = self._clients
        self.home = self.opening = None
        own, self.own = self.own, []
        return own
