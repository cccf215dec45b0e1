"""The originals of one topic that are backing off, and which of them to send again (R16).

A retry policy that has failed four times waits half a minute, also for a service that answers all
others again. So each batch that is stored lets one waiting original go, and one that had been let
go itself lets two: the answers set the pace, which doubles until the service is as fast as it gets.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hedged_pubsub._core.engine import AttemptEngine

MAX_IN_FLIGHT: Final = 16
"""Originals that were let go and have not ended. Without a bound those of a long outage all go out
within a few round trips, and fresh messages wait behind them for a second."""

MIN_PAUSE: Final = 1.0
"""Seconds between two times that the same original is let go. A batch that always fails must cost
little more than its policy."""


_TIMERS: Final = 4
"""Originals that wait of which a hedge timer is due within one delay. One of them can send the
probe; of thousands, each with a timer, these would cost more than what they wait for."""


# Most topics never have any that wait. They share this, and stay small.
_NONE_READY: Final[collections.OrderedDict[AttemptEngine, None]] = collections.OrderedDict()
_order: Final = itertools.count()


class Waiting:
    """The originals of a topic that are backing off.

    Attributes:
        enabled: Whether any are let go at all.
        ready: Those that may be let go now; the one that waits longest comes first.
        later: When others may, and they themselves: a heap. Some may have gone meanwhile.
        in_flight: How many were let go and have not ended.
    """

    __slots__ = ("enabled", "in_flight", "later", "ready")

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.ready = _NONE_READY
        self.later: list[tuple[float, int, AttemptEngine]] = []
        self.in_flight = 0

    @property
    def spread(self) -> int:
        """How many hedge timers an original that waits can do without."""
        return (len(self.ready) + len(self.later)) // _TIMERS

    def add(self, run: AttemptEngine, may_go_at: float, now: float) -> None:
        """Take in an original that backs off, and may be let go from then on."""
        if not self.enabled:
            return
        run.may_go_at = may_go_at
        if may_go_at <= now:
            self._add_ready(run)
        elif may_go_at < math.inf:
            self._sort(now)
            heapq.heappush(self.later, (may_go_at, next(_order), run))

    def remove(self, run: AttemptEngine) -> None:
        """Forget an original that backs off no more."""
        run.may_go_at = math.inf
        self.ready.pop(run, None)

    def pick(self, count: int, now: float) -> Iterator[AttemptEngine]:
        """Take out so many at most, as far as there are not too many in flight."""
        self._sort(now)
        while count and self.ready and self.in_flight < MAX_IN_FLIGHT:
            run, _ = self.ready.popitem(last=False)
            run.may_go_at = math.inf
            self.in_flight += 1
            count -= 1
            yield run

    def _sort(self, now: float) -> None:
        while self.later and self.later[0][0] <= now:
            when, _, run = heapq.heappop(self.later)
            if run.may_go_at == when:  # or it has gone, and perhaps come again
                self._add_ready(run)

    def _add_ready(self, run: AttemptEngine) -> None:
        if self.ready is _NONE_READY:
            self.ready = collections.OrderedDict()
        self.ready[run] = None
