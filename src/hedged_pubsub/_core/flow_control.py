"""Flow control: how many messages and bytes may be in flight; first come, first served.

A message has a ``Permit``. ``admit`` counts it, or lets it wait in a queue until those before it
have been admitted and there is room; ``release`` takes it out of the count, or out of the queue.
There is no clock, lock or thread in here: ``release`` and ``pump`` return the permits whose owners
the publisher is to wake.

**Interrupted.** The synchronous publisher calls this on its users' threads. There, a signal handler
can run, and raise, or call the publisher, and so this, once more. CPython runs signal handlers, and
switches threads, at a function's entry, after a call and at a jump, and at no other place. (gRPC's
extension module keeps that so on builds that can do without the interpreter's lock.) So:

* Each change, of the counts, the queue and a permit's state together, is one stretch of plain
  attribute arithmetic, with no call or jump in it, nor between it and the test that leads to it;
  and nothing is made in it that the garbage collector tracks, for up to Python 3.11 it runs there.
  A lock would not do: a handler that runs while its thread holds it may wait for another thread.
* Whoever called ``admit`` calls ``release`` if an exception comes before the message is in a batch,
  whatever the permit's state is by then. A second ``release`` does nothing.
* A permit that was admitted while it waited stays in a list until its owner is ``woken``. If an
  exception ends a driver's loop, or the result of ``release`` gets lost, the next ``release`` or
  ``pump`` returns the permit again; so waking twice must do no harm.
* Every ``admit``, ``release`` and ``pump`` admits all that waits and fits, in case an exception has
  kept an earlier call from doing so.

The queue is a ring of the permits themselves: one leaves it from any place in the same time, and
without a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

# Numbers, because reading a member of an Enum runs Python code on some releases.
NEW: Final = 0
WAITING: Final = 1
ADMITTED: Final = 2
RELEASED: Final = 3


class Permit:
    """The place of a message in flow control, or of several that were merged.

    To wait for a permit, set ``wake`` first, then read ``state``, and wait if it is ``WAITING``.

    Attributes:
        messages: How many there are.
        size: Bytes of all of them, serialized.
        state: ``NEW``, ``WAITING``, ``ADMITTED`` (it counts) or ``RELEASED``.
        wake: Wakes whoever waits for the permit; ``None`` until somebody does.
    """

    __slots__ = ("_next", "_previous", "messages", "size", "state", "wake")

    _next: Permit
    _previous: Permit

    def __init__(self, size: int) -> None:
        self.messages = 1
        self.size = size
        self.state: int = NEW
        self.wake: Any = None
        self._next = self._previous = _NONE


# The neighbour of a permit that is in no ring. It is written to, always the same, which saves the
# jumps around it.
_NONE: Final = Permit.__new__(Permit)
_NONE._next = _NONE._previous = _NONE


class FlowControl:
    """Counts messages and bytes against the limits, and keeps the queue of those that wait.

    Args:
        message_limit: How many messages may be counted; ``math.inf`` for no limit.
        byte_limit: How many bytes; likewise.
        refuses: Whether a message that would exceed a limit is refused instead of waiting.
        refusal: Makes the error that a message is refused with.

    Attribute ``counts`` tells whether there is a limit at all.
    """

    __slots__ = (
        "_admitted",
        "_byte_limit",
        "_bytes",
        "_message_limit",
        "_messages",
        "_refusal",
        "_refuses",
        "_waiting",
        "counts",
    )

    def __init__(
        self,
        message_limit: float = math.inf,
        byte_limit: float = math.inf,
        *,
        refuses: bool = False,
        refusal: Callable[[str], Exception] = RuntimeError,
    ) -> None:
        self.counts = min(message_limit, byte_limit) < math.inf
        self._message_limit = message_limit
        self._byte_limit = byte_limit
        self._refuses = refuses
        self._refusal = refusal
        self._messages = 0
        self._bytes = 0
        self._waiting = _ring()
        self._admitted = _ring()  # while they waited; their owners are not woken yet

    @property
    def messages(self) -> int:
        """How many messages are counted."""
        return self._messages

    @property
    def bytes(self) -> int:
        """How many bytes are counted."""
        return self._bytes

    @property
    def waiting(self) -> int:
        """About how many messages wait, on a thread that others do not wait for."""
        count, permit = 0, self._waiting._next
        while permit is not self._waiting and permit is not _NONE:  # it has left meanwhile
            count, permit = count + 1, permit._next
        return count

    def admit(self, permit: Permit) -> bool:
        """Count a new message and return True, unless others wait or it would exceed a limit.

        If not, it is in the queue; call ``pump`` then, for those before it that an interruption may
        have kept from being woken. Where messages are not to wait, or this one alone exceeds a
        limit, raise what ``refusal`` makes.
        """
        waiting = self._waiting
        if (
            permit.state == NEW
            and waiting._next is waiting
            and self._messages < self._message_limit
            and self._bytes + permit.size <= self._byte_limit
        ):
            self._messages += 1
            self._bytes += permit.size
            permit.state = ADMITTED
            return True
        return self._admit_later(permit)

    def _admit_later(self, permit: Permit) -> bool:
        if permit.state == NEW and self._refuses:
            load = self._load(self._messages + 1, self._bytes + permit.size)
            raise self._refusal(f"Flow control limits would be exceeded - {load}.")
        if permit.size > self._byte_limit or self._message_limit < 1:
            load = self._load(1, permit.size)
            raise self._refusal(
                f"Total flow control limits too low for the message, would block forever - {load}."
            )
        waiting = self._waiting
        if permit.state == NEW:
            last = waiting._previous
            last._next = permit
            permit._previous = last
            permit._next = waiting
            waiting._previous = permit
            permit.state = WAITING
        self._admit_waiting()
        if permit.state == ADMITTED:
            self.woken(permit)  # its owner is told by the result
            return True
        return False

    def release(self, permit: Permit) -> Sequence[Permit]:
        """Take a message out of the count, or of the queue, unless it is; return as ``pump``."""
        # In the order in which a permit goes through its states: another call, at a jump, may
        # admit one that waits.
        if permit.state == WAITING:
            previous, following = permit._previous, permit._next
            previous._next = following
            following._previous = previous
            permit._previous = _NONE
            permit._next = _NONE
            permit.state = RELEASED
        if permit.state == ADMITTED:
            previous, following = permit._previous, permit._next
            previous._next = following
            following._previous = previous
            permit._previous = _NONE
            permit._next = _NONE
            self._messages -= permit.messages
            self._bytes -= permit.size
            permit.state = RELEASED
        if permit.state == NEW:
            permit.state = RELEASED
        waiting, admitted = self._waiting, self._admitted
        if waiting._next is waiting and admitted._next is admitted:
            return ()
        return self.pump()

    def pump(self) -> Sequence[Permit]:
        """Admit all that waits and fits.

        Return the permits, in order, that were admitted while they waited, now or before, and that
        ``woken`` was not called with yet.
        """
        self._admit_waiting()
        to_wake: list[Permit] = []
        admitted = self._admitted
        permit = admitted._next
        # One that is in no ring was taken out meanwhile, by another call, which has returned those
        # behind it.
        while permit is not admitted and permit is not _NONE:
            following = permit._next
            to_wake.append(permit)
            permit = following
        return to_wake

    def woken(self, permit: Permit) -> None:
        """Take note that the owner of an admitted permit has been woken."""
        if permit.state == ADMITTED:
            previous, following = permit._previous, permit._next
            previous._next = following
            following._previous = previous
            permit._previous = _NONE
            permit._next = _NONE

    def _admit_waiting(self) -> None:
        while self._admit_first():
            pass

    def _admit_first(self) -> bool:
        """Admit the one that has waited longest, if it fits. Nothing is freed between the lines."""
        waiting, admitted = self._waiting, self._admitted
        first = waiting._next
        if (
            first is not waiting
            and self._messages < self._message_limit
            and self._bytes + first.size <= self._byte_limit
        ):
            following, last = first._next, admitted._previous
            waiting._next = following
            following._previous = waiting
            last._next = first
            first._previous = last
            first._next = admitted
            admitted._previous = first
            self._messages += 1
            self._bytes += first.size
            first.state = ADMITTED
            return True
        return False

    def _load(self, messages: int, size: int) -> str:
        # In the official client's words; there are no reservations for those that wait here.
        return (
            f"messages: {messages} / {self._message_limit} (reserved: 0), "
            f"bytes: {size} / {self._byte_limit} (reserved: 0)"
        )


def merge(permit: Permit, into: Permit) -> None:
    """Count a message with others, which are to be released at once. Both are admitted.

    Args:
        permit: The message's. It is released by this, and whoever releases it does nothing.
        into: That of the others, for example of the first message of a batch.
    """
    if permit.state == ADMITTED and into.state == ADMITTED:
        previous, following = permit._previous, permit._next
        previous._next = following
        following._previous = previous
        permit._previous = _NONE
        permit._next = _NONE
        into.messages += permit.messages
        into.size += permit.size
        permit.state = RELEASED


def _ring() -> Permit:
    """Return the head of an empty ring."""
    head = Permit(0)
    head._next = head._previous = head
    return head
