"""One subscription: a queue of messages and the leases of those that were delivered."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Lease:
    """A delivered message that is not acknowledged yet."""

    message: Any
    delivery: int
    expires: float
    consumer: Hashable


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message on its way to a consumer.

    Attributes:
        ack_id: what the consumer acknowledges it with.
        message: the protobuf message.
    """

    ack_id: str
    message: Any


class Subscription:
    """Delivers each message at least once: again when it is not acknowledged in time. Thread-safe.

    Args:
        proto: its protobuf description.
    """

    def __init__(self, proto: Any) -> None:
        self.proto = proto
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Any, int]] = deque()
        self._leases: dict[str, _Lease] = {}
        self._expiries: list[tuple[float, str]] = []
        self._outstanding: Counter[Hashable] = Counter()
        self._ack_ids = itertools.count(1)
        self._closed = False

    def add(self, messages: Iterable[Any]) -> None:
        """Queues messages."""
        with self._changed:
            self._waiting.extend((message, 1) for message in messages)
            self._changed.notify_all()

    def take(
        self,
        consumer: Hashable,
        *,
        max_messages: int,
        max_outstanding: int = 0,
        ack_deadline: float = 0.0,
        timeout: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[Delivery]:
        """Waits for messages and leases them to the consumer.

        Args:
            consumer: identifies who takes.
            max_messages: at most so many.
            max_outstanding: waits while the consumer has so many that are not acknowledged; 0 for
                no limit.
            ack_deadline: seconds until they are delivered again; 0 for the subscription's own.
            timeout: seconds to wait; None for no limit.
            cancelled: tells that the consumer is gone; looked at on every `wake`.

        Returns:
            The deliveries; none after the timeout, when cancelled, or when closed.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._closed and not cancelled():
                now = time.monotonic()
                self._return_expired(now)
                room = max_messages
                if max_outstanding > 0:
                    room = min(room, max_outstanding - self._outstanding[consumer])
                if self._waiting and room > 0:
                    expires = now + (ack_deadline or self.proto.ack_deadline_seconds)
                    return self._lease(consumer, room, expires)
                if give_up is not None and now >= give_up:
                    break
                wakeups = [t for t in (give_up, self._next_expiry()) if t is not None]
                self._changed.wait(min(wakeups) - now if wakeups else None)
            return []

    def acknowledge(self, ack_ids: Iterable[str]) -> None:
        """Ends leases for good. Unknown and late ids are ignored, as on the real service."""
        with self._changed:
            for ack_id in ack_ids:
                self._end_lease(ack_id)
            self._changed.notify_all()

    def modify_ack_deadline(self, ack_ids: Iterable[str], seconds: float) -> None:
        """Lets leases end ``seconds`` from now; 0 delivers the messages again at once."""
        expires = time.monotonic() + seconds
        with self._changed:
            for ack_id in ack_ids:
                lease = self._leases.get(ack_id)
                if lease is not None:
                    lease.expires = expires
                    heapq.heappush(self._expiries, (expires, ack_id))
            self._changed.notify_all()

    def wake(self) -> None:
        """Lets everything that waits look at ``cancelled`` again."""
        with self._changed:
            self._changed.notify_all()

    def clear(self) -> None:
        """Forgets all messages."""
        with self._changed:
            self._waiting.clear()
            self._leases.clear()
            self._expiries.clear()
            self._outstanding.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting, for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _lease(self, consumer: Hashable, room: int, expires: float) -> list[Delivery]:
        deliveries: list[Delivery] = []
        while self._waiting and len(deliveries) < room:
            message, number = self._waiting.popleft()
            ack_id = f"{next(self._ack_ids)}-{number}"
            self._leases[ack_id] = _Lease(message, number, expires, consumer)
            heapq.heappush(self._expiries, (expires, ack_id))
            deliveries.append(Delivery(ack_id, message))
        self._outstanding[consumer] += len(deliveries)
        return deliveries

    def _return_expired(self, now: float) -> None:
        while (next_expiry := self._next_expiry()) is not None and next_expiry <= now:
            ack_id = heapq.heappop(self._expiries)[1]
            lease = self._end_lease(ack_id)
            if lease is not None:
                self._waiting.appendleft((lease.message, lease.delivery + 1))

    def _next_expiry(self) -> float | None:
        while self._expiries:
            expires, ack_id = self._expiries[0]
            lease = self._leases.get(ack_id)
            if lease is not None and lease.expires == expires:
                return expires
            heapq.heappop(self._expiries)  # acknowledged or prolonged since
        return None

    def _end_lease(self, ack_id: str) -> _Lease | None:
        lease = self._leases.pop(ack_id, None)
        if lease is not None:
            self._outstanding[lease.consumer] -= 1
            if not self._outstanding[lease.consumer]:
                del self._outstanding[lease.consumer]
        return lease
