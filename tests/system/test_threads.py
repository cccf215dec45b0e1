"""The library's thread and the workers on real threads and real time."""

from __future__ import annotations

import _thread
import gc
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable

import pytest

from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.workers import Workers

from .conftest import wait_until

clock = time.monotonic


@pytest.fixture
def library() -> LibraryThread:
    """Start a thread of the test's own."""
    library = LibraryThread(clock)
    assert library.start()
    return library


@pytest.fixture
def workers(library: LibraryThread) -> Workers:
    """Make workers, which a thread of the test's own watches."""
    return Workers(library, clock)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Let no thread be started, and collect what was refused."""
    refused: list[object] = []

    def refuse(thread: object, *_: object) -> int:
        refused.append(thread)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    return refused


def test_timers_come_in_order_and_none_early(library: LibraryThread) -> None:
    """Whatever the order in which they are asked for, each comes at its time.

    One that is nearer than what the thread sleeps until is not late, not even than a time for which
    no thread can wait at once.
    """
    seen: list[tuple[int, float]] = []
    start = clock()

    def note(tenths: int) -> None:
        seen.append((tenths, clock() - start))

    library.call_at(1e300, note, 1000)
    library.call_at(start + 60, note, 600)
    time.sleep(0.05)  # until the thread sleeps
    for tenths in (3, 1, 2):
        library.call_at(start + tenths / 10, note, tenths)
    wait_until(lambda: len(seen) == 3)
    assert [tenths for tenths, _ in seen] == [1, 2, 3]
    assert all(at >= tenths / 10 for tenths, at in seen)


def test_no_timer_is_missed(library: LibraryThread) -> None:
    """Neither one that another thread sets while this one falls asleep, nor one that is very near.

    For that one CPython's queue would wait for ever.
    """
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for turn in range(20_000):
            called = _thread.allocate_lock()
            called.acquire()
            library.post(int)
            library.call_at(clock() + 1e-7 * (turn % 600), called.release)
            assert called.acquire(timeout=5), turn
    finally:
        sys.setswitchinterval(switch_interval)


def test_the_thread_survives_what_it_calls(library: LibraryThread) -> None:
    """R8: an error is reported, and what comes after it is called."""
    called = threading.Event()
    errors: list[Exception] = []
    library.on_error = lambda _function, error: errors.append(error)
    library.post(lambda: 1 / 0)
    library.call_at(clock() + 0.01, called.set)
    assert called.wait(5)
    assert [type(error) for error in errors] == [ZeroDivisionError]


def test_it_answers_and_refuses_to_wait_for_itself(library: LibraryThread) -> None:
    """Whoever asks gets a result or the error; the thread itself gets an error at once."""
    assert library.ask(max, 1, 2) == 2
    with pytest.raises(ZeroDivisionError):
        library.ask(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="finalizer"):
        library.ask(library.ask, max, 1, 2)
    library.workers.add(threading.get_ident())
    with library.guard(), pytest.raises(RuntimeError, match="finalizer"):
        library.ask(max, 1, 2)  # as in a finalizer, while the thread may wait for the guard
    assert library.ask(max, 1, 2) == 2


def test_two_that_start_it_at_once_start_one(library: LibraryThread) -> None:
    """Whoever comes second ends without having done anything."""
    library._started = False
    library.start()
    threads: set[int] = set()
    for _ in range(20):
        library.post(lambda: threads.add(threading.get_ident()))
        time.sleep(0.002)
    library.ask(max, 1, 2)
    assert threads == {library.ident}


def test_a_parked_thread_does_nothing_until_it_may(library: LibraryThread) -> None:
    """What comes while it is parked is done afterwards."""
    library.ask(max, 1, 2)
    parking = library.park(5)
    called = threading.Event()
    library.post(called.set)
    assert not called.wait(0.1)
    parking.end()
    assert called.wait(5)


def test_where_it_cannot_be_started_others_do_its_work(refused: list[object]) -> None:
    """Without a thread there is no error; what is due is done by whoever calls ``run_once``."""
    library = LibraryThread(clock)
    assert not library.start()
    seen: list[int] = []
    library.post(seen.append, 1)
    library.call_at(clock() + 60, seen.append, 2)
    library.run_once()
    assert seen == [1]
    assert library.ask(max, 1, 2) == 2


def test_what_a_batch_waits_for_comes_first(workers: Workers) -> None:
    """A hundred short callbacks hold up an urgent job by one of them."""
    seen: list[str] = []

    def callback() -> None:
        time.sleep(0.005)
        seen.append("callback")

    for _ in range(100):
        workers.submit(callback)
    time.sleep(0.02)
    workers.submit_urgent(lambda: seen.append("urgent"))
    wait_until(lambda: len(seen) == 101)  # or the rest would run within the next test
    assert seen.index("urgent") < 50


def test_where_no_worker_can_be_started_others_help(
    workers: Workers, refused: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs wait for threads that wait, and for the next try."""
    seen: list[int] = []

    def note() -> None:
        seen.append(threading.get_ident())

    begin = clock()
    for _ in range(50):
        workers.submit(note)
    assert workers.starved
    time.sleep(0.35)
    # One of them tries again, ten times a second. Those of earlier tests may do so as well.
    tries = [one for one in refused if getattr(one, "_target", None) == workers._run]
    assert len(tries) <= 50 + 10 * (clock() - begin) + 2
    for _ in range(50):
        workers.help(with_all=True)
    assert seen == [threading.get_ident()] * 50
    workers.submit(note)
    monkeypatch.undo()
    wait_until(lambda: len(seen) == 51)
    assert seen[-1] != threading.get_ident()
    wait_until(lambda: not workers.starved)


def test_short_jobs_share_one_thread_and_keep_their_order(workers: Workers) -> None:
    """Jobs run in the order they came, on a single worker while none blocks."""
    seen: list[tuple[int, int]] = []
    for number in range(200):
        workers.submit(lambda n=number: seen.append((n, threading.get_ident())))
        if number % 20 == 0:
            time.sleep(0.002)
    wait_until(lambda: len(seen) == 200)
    assert [number for number, _ in seen] == list(range(200))
    assert len({thread for _, thread in seen}) <= 2


def test_blocked_workers_are_joined_by_others(workers: Workers) -> None:
    """Jobs that block hold up none behind them, which they may wait for, however deep."""
    release, called, done = threading.Event(), threading.Event(), threading.Event()
    for _ in range(30):
        workers.submit(release.wait)
    workers.submit(called.set)
    assert called.wait(5)
    release.set()

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
    workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    """R8: neither an error nor ``SystemExit`` ends the worker."""
    called = threading.Event()
    jobs: list[Callable[[], object]] = [lambda: 1 / 0, sys.exit, called.set]
    with caplog.at_level(logging.ERROR):
        for job in jobs:
            workers.submit(job)
        assert called.wait(5)
    assert "ZeroDivisionError" in caplog.text
    assert "SystemExit" in caplog.text


def test_idle_workers_end(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers without a job end after a while, and come back with the next one."""
    monkeypatch.setattr("hedged_pubsub._sync.workers._IDLE_TIMEOUT", 0.05)
    threads: list[threading.Thread] = []
    workers.submit(lambda: threads.append(threading.current_thread()))
    wait_until(lambda: threads and not threads[0].is_alive())
    workers.submit(lambda: threads.append(threading.current_thread()))
    wait_until(lambda: len(threads) == 2)


def test_a_finished_job_is_let_go(workers: Workers) -> None:
    """An idle worker keeps nothing of its last job alive."""

    class Payload:
        def run(self) -> None:
            done.set()

    done = threading.Event()
    payload = Payload()
    alive = weakref.ref(payload)
    workers.submit(payload.run)
    del payload
    assert done.wait(5)
    wait_until(lambda: gc.collect() is not None and alive() is None)
