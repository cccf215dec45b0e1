"""The timer and the pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from hedged_pubsub.testing.threads import DaemonPool, Timer


@pytest.fixture
def timer() -> Iterator[Timer]:
    """Return a timer that is stopped after the test."""
    timer = Timer("test-timer")
    yield timer
    timer.stop()


def test_the_timer_calls_in_order_of_time(timer: Timer) -> None:
    """An entry that is due earlier is called earlier, whenever it was added."""
    called: list[str] = []
    done = threading.Event()
    now = time.monotonic()
    timer.call_at(now + 0.03, done.set)
    timer.call_at(now + 0.02, lambda: called.append("second"))
    timer.call_at(now + 0.01, lambda: called.append("first"))
    assert done.wait(10)
    assert called == ["first", "second"]


def test_a_nearer_entry_wakes_the_timer(timer: Timer) -> None:
    """A wait for a far entry does not delay a near one."""
    done = threading.Event()
    timer.call_at(time.monotonic() + 1e9, lambda: None)
    timer.call_at(time.monotonic(), done.set)
    assert done.wait(10)


def test_a_stopped_timer_calls_nothing() -> None:
    """Stopping drops what is pending and what comes later, and ends the thread."""
    timer = Timer("stopped-timer")
    timer.call_at(time.monotonic() + 1e6, lambda: None)
    timer.stop()
    timer.call_at(time.monotonic(), lambda: None)
    assert "stopped-timer" not in [thread.name for thread in threading.enumerate()]


def test_the_pool_returns_results_and_errors() -> None:
    """A future gets what the function returned or raised."""
    pool = DaemonPool(2, "test-pool")
    assert pool.submit(divmod, 7, 2).result(10) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(10)
    pool.shutdown()


def test_the_pools_threads_are_daemons_and_end() -> None:
    """A thread of the pool never keeps the interpreter alive, and a shutdown ends all of them."""
    pool = DaemonPool(3, "test-pool")
    threads = [t for t in threading.enumerate() if t.name.startswith("test-pool")]
    assert len(threads) == 3
    assert all(thread.daemon for thread in threads)
    pool.shutdown()
    assert not any(thread.is_alive() for thread in threads)
