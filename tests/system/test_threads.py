"""The scheduler and the workers on real threads and real time."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
import weakref
from functools import partial

import pytest

from hedged_pubsub._sync.scheduler import Scheduler
from hedged_pubsub._sync.workers import Workers

from .conftest import wait_until

_SLACK = 0.5
"""Seconds that a busy machine may add."""


def clock() -> float:
    """Return the time that both use."""
    return time.monotonic()


def test_wakeups_come_in_order_and_in_time() -> None:
    """Whatever the order in which they are asked for, each comes at its time."""
    scheduler = Scheduler(clock)
    seen: list[tuple[int, float]] = []
    start = clock()

    def note(tenths: int) -> None:
        seen.append((tenths, clock() - start))

    for tenths in (3, 1, 2):
        scheduler.call_at(start + tenths / 10, partial(note, tenths))
    wait_until(lambda: len(seen) == 3)
    assert [tenths for tenths, _ in seen] == [1, 2, 3]
    for tenths, at in seen:
        assert tenths / 10 <= at < tenths / 10 + _SLACK


def test_a_nearer_wakeup_wakes_the_thread() -> None:
    """A wake-up that is nearer than what the thread sleeps until is not late."""
    scheduler = Scheduler(clock)
    scheduler.call_at(clock() + 60, lambda: None)
    time.sleep(0.05)  # until the thread sleeps
    called = threading.Event()
    scheduler.call_at(clock() + 0.05, called.set)
    assert called.wait(0.05 + _SLACK)


def test_a_wakeup_in_the_far_future_does_no_harm() -> None:
    """A wait longer than a thread can wait at once does not end the scheduler."""
    scheduler = Scheduler(clock)
    scheduler.call_at(1e300, lambda: None)
    time.sleep(0.05)  # until the thread sleeps
    called = threading.Event()
    scheduler.call_at(clock() + 0.01, called.set)
    assert called.wait(1)


def test_a_cancelled_wakeup_lets_go_at_once() -> None:
    """A cancelled wake-up is not called, and does not keep alive what it was to call."""

    class Payload:
        def call(self) -> None:
            calls.append(self)

    calls: list[Payload] = []
    scheduler = Scheduler(clock)
    payload = Payload()
    wakeup = scheduler.call_at(clock() + 0.1, payload.call)
    alive = weakref.ref(payload)
    wakeup.cancel()
    del payload
    gc.collect()
    assert alive() is None
    called = threading.Event()
    scheduler.call_at(clock() + 0.15, called.set)
    assert called.wait(1)
    assert calls == []


def test_the_scheduler_survives_a_wakeup_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """R8: an error in one wake-up is logged, and the next one comes."""
    scheduler = Scheduler(clock)
    called = threading.Event()
    with caplog.at_level(logging.ERROR):
        scheduler.call_at(clock(), lambda: 1 / 0)
        scheduler.call_at(clock() + 0.01, called.set)
        assert called.wait(1)
    assert "the scheduler goes on" in caplog.text


def test_cancelled_wakeups_cost_one_wakeup_not_one_each() -> None:
    """A thousand batches that are decided in time wake the thread at most once a delay."""
    ticks: list[float] = []

    def counting_clock() -> float:
        if threading.current_thread().name == "hedged-pubsub-scheduler":
            ticks.append(clock())
        return clock()

    scheduler = Scheduler(counting_clock)
    for _ in range(1000):
        scheduler.call_at(clock() + 0.1, lambda: None).cancel()
    time.sleep(0.5)
    # Once when it starts, and once when the first of them would have been due.
    assert len(ticks) <= 4


def make_workers() -> Workers:
    """Make workers with a scheduler of their own."""
    return Workers(Scheduler(clock), clock)


def test_short_jobs_share_one_thread_and_keep_their_order() -> None:
    """Jobs run in the order they came, on a single worker while none blocks."""
    workers = make_workers()
    seen: list[tuple[int, int]] = []
    for number in range(200):
        workers.submit(lambda n=number: seen.append((n, threading.get_ident())))
        if number % 20 == 0:
            time.sleep(0.002)
    wait_until(lambda: len(seen) == 200)
    assert [number for number, _ in seen] == list(range(200))
    assert len({thread for _, thread in seen}) <= 2


def test_blocked_workers_are_joined_by_others() -> None:
    """Jobs that block do not hold up the ones behind them."""
    workers = make_workers()
    release = threading.Event()
    for _ in range(30):
        workers.submit(release.wait)
    called = threading.Event()
    start = clock()
    workers.submit(called.set)
    assert called.wait(5)
    assert clock() - start < 0.5
    release.set()


def test_a_job_may_wait_for_a_later_job() -> None:
    """What a job waits for may need a worker itself: no deadlock, however deep."""
    workers = make_workers()
    done = threading.Event()

    def nest(depth: int) -> None:
        if depth == 0:
            done.set()
            return
        inner = threading.Event()
        workers.submit(nest, depth - 1)
        workers.submit(inner.set)
        assert inner.wait(5)

    workers.submit(nest, 10)
    assert done.wait(5)


def test_a_job_that_raises_is_logged_and_the_worker_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R8: neither an error nor ``SystemExit`` ends the worker."""
    workers = make_workers()
    called = threading.Event()
    with caplog.at_level(logging.ERROR):
        workers.submit(lambda: 1 / 0)
        workers.submit(sys.exit)
        workers.submit(called.set)
        assert called.wait(1)
    assert "ZeroDivisionError" in caplog.text
    assert "SystemExit" in caplog.text


def test_idle_workers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers without a job end after a while, and come back with the next one."""
    monkeypatch.setattr("hedged_pubsub._sync.workers._IDLE_TIMEOUT", 0.05)
    workers = make_workers()
    threads: list[threading.Thread] = []
    workers.submit(lambda: threads.append(threading.current_thread()))
    wait_until(lambda: threads and not threads[0].is_alive())
    workers.submit(lambda: threads.append(threading.current_thread()))
    wait_until(lambda: len(threads) == 2)


def test_a_finished_job_is_let_go() -> None:
    """An idle worker keeps nothing of its last job alive."""

    class Payload:
        def run(self) -> None:
            done.set()

    done = threading.Event()
    workers = make_workers()
    payload = Payload()
    alive = weakref.ref(payload)
    workers.submit(payload.run)
    del payload
    assert done.wait(1)
    wait_until(lambda: gc.collect() is not None and alive() is None)
