"""Publishing on a fixed schedule, and measuring from that schedule."""

from __future__ import annotations

import concurrent.futures
import queue
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

Publish = Callable[[int], "Future[str]"]
"""Publishes message number n and returns the client's future."""

# Enough to keep both sides busy, few enough that nothing queues in the client.
_WARM_UP_IN_FLIGHT: Final = 8
_PROGRESS_INTERVAL: Final = 0.2


class MeasurementError(Exception):
    """What was measured cannot be shown: a publish failed, did not end, or was not stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLoopRun:
    """What one client did with the schedule.

    Attributes:
        latencies: Seconds from the scheduled send time to the future's completion, by message.
        lateness: Seconds from the scheduled send time to the call of ``publish()``, by message:
            how well this machine kept the schedule.
    """

    latencies: tuple[float, ...]
    lateness: tuple[float, ...]


def warm_up(publish: Publish, count: int, *, timeout: float) -> None:
    """Publish ``count`` messages, a few at a time, and wait for all of them.

    Args:
        publish: Called with 0, 1, … ``count - 1``.
        count: How many messages to publish.
        timeout: Seconds to wait for any one of them.

    Raises:
        MeasurementError: If one fails or does not end within ``timeout``.
    """
    in_flight: deque[Future[str]] = deque()
    for number in range(count):
        if len(in_flight) == _WARM_UP_IN_FLIGHT:
            _check(in_flight.popleft(), timeout)
        in_flight.append(publish(number))
    while in_flight:
        _check(in_flight.popleft(), timeout)


def run_open_loop(
    publish: Publish,
    *,
    publishes: int,
    rate: float,
    timeout: float,
    on_progress: Callable[[int], None],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> OpenLoopRun:
    """Publish message n at ``n / rate`` seconds, whatever became of those before it.

    A closed loop would wait for a stalled request and not send the messages that meet the stall,
    so that the tail hides itself. Here the schedule is fixed in advance, and latency counts from
    the scheduled time: time lost because a client was late is part of the latency.

    Args:
        publish: Called with 0, 1, … ``publishes - 1``; must not block.
        publishes: How many messages to publish.
        rate: Messages per second.
        timeout: Seconds to wait for a completion, once all is sent, before giving up.
        on_progress: Called now and then with the number of messages that ended.
        clock: Monotonic seconds.
        sleep: Sleeps for some seconds.

    Raises:
        MeasurementError: If a publish fails, or none ends for ``timeout`` seconds.
    """
    # A simple queue: put() takes no Python lock, so that measuring costs next to nothing. And no
    # list of futures: the cyclic garbage collector would walk each of them, in pauses that show.
    ended: queue.SimpleQueue[tuple[int, float, BaseException | None]] = queue.SimpleQueue()
    lateness: list[float] = []

    def record(number: int) -> Callable[[Future[str]], None]:
        return lambda future: ended.put((number, clock(), future.exception()))

    start = clock()
    next_progress = start
    for number in range(publishes):
        due = start + number / rate
        if (ahead := due - clock()) > 0:
            sleep(ahead)
        now = clock()
        lateness.append(now - due)
        publish(number).add_done_callback(record(number))
        if now >= next_progress:
            on_progress(ended.qsize())
            next_progress = now + _PROGRESS_INTERVAL

    latencies = [0.0] * publishes
    for count in range(publishes):
        try:
            number, end, error = ended.get(timeout=timeout)
        except queue.Empty:
            raise MeasurementError(
                f"{publishes - count} of {publishes} publishes have not ended {timeout:g} s after"
                " the last one did; is another program using up this machine?"
            ) from None
        if error is not None:
            raise _failed(error)
        latencies[number] = end - (start + number / rate)
        on_progress(count + 1 + ended.qsize())
    return OpenLoopRun(latencies=tuple(latencies), lateness=tuple(lateness))


def _check(future: Future[str], timeout: float) -> None:
    try:
        error = future.exception(timeout)
    except concurrent.futures.TimeoutError:
        raise MeasurementError(
            f"a publish did not end within {timeout:g} s; is another program using up this machine?"
        ) from None
    if error is not None:
        raise _failed(error)


def _failed(error: BaseException) -> MeasurementError:
    failure = MeasurementError(f"a publish failed: {error!r}")
    failure.__cause__ = error
    return failure
