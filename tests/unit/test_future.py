"""The future of a message is a ``concurrent.futures.Future`` to everybody who uses it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub._sync import threads
from hedged_pubsub._sync.future import PublishFuture, settle
from tests.system.interruptions.places import interrupt_collection

from .fakes import refuse


@pytest.fixture(autouse=True)
def _workers_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the workers' jobs where they are submitted."""
    for submit in ("submit", "submit_urgent"):
        monkeypatch.setattr(threads.WORKERS, submit, lambda function, *args: function(*args))


def make(count: int) -> list[PublishFuture]:
    """Make the futures of one batch."""
    return [PublishFuture() for _ in range(count)]


def resolve(futures: list[PublishFuture]) -> None:
    """Resolve them with their numbers."""
    settle(futures, [str(number) for number in range(len(futures))], None)


def fail(futures: list[PublishFuture], error: Exception) -> None:
    """Fail them all."""
    settle(futures, itertools.repeat(None), error)


def test_pending() -> None:
    """A pending future says so in every way, and cannot be cancelled; it is an official one."""
    (future,) = make(1)
    assert isinstance(future, concurrent.futures.Future)
    assert isinstance(future, pubsub_v1.publisher.futures.Future)
    assert future.running()
    assert not any((future.done(), future.cancel(), future.cancelled()))
    assert concurrent.futures.wait([future], timeout=0).not_done == {future}
    assert "pending" in repr(future)
    for wait in (future.result, future.exception):
        with pytest.raises(concurrent.futures.TimeoutError):
            wait(timeout=0)


def test_decided() -> None:
    """Each future has the id of its message, or all of a batch have the error."""
    futures, failed, error = make(3), make(2), ValueError("no")
    resolve(futures)
    fail(failed, error)
    assert [future.result(timeout=0) for future in futures] == ["0", "1", "2"]
    assert all(future.done() and not future.running() for future in futures)
    both = {*futures, *failed}
    assert set(concurrent.futures.as_completed(both, timeout=0)) == both
    assert futures[0].exception() is None
    assert "finished" in repr(futures[0])
    for future in failed:
        assert future.exception(timeout=0) is error
        with pytest.raises(ValueError, match="no"):
            future.result()


def test_callbacks(caplog: pytest.LogCaptureFixture) -> None:
    """Each is called once: when the future is done, or at once if it is.

    One that raises, even ``SystemExit``, is logged and left behind.
    """
    future, other = make(2)
    called: list[Any] = []
    for callback in (called.append, refuse(SystemExit()), called.append):
        future.add_done_callback(callback)
    with caplog.at_level(logging.ERROR):
        resolve([future, other])
    assert called == [future, future]
    assert "SystemExit" in caplog.text
    future.add_done_callback(called.append)
    assert called == [future] * 3


def test_callbacks_run_without_the_condition_held_and_after_all_results() -> None:
    """A callback may wait for another message of its batch, on any thread."""
    first, second = make(2)
    seen: list[str] = []

    def from_another_thread(_: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append(second.result(timeout=1)))
        thread.start()
        thread.join()

    first.add_done_callback(from_another_thread)
    resolve([first, second])
    assert seen == ["1"]


def test_a_held_condition_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own: who brings the outcome waits for no lock of a user's; a worker does."""
    jobs: list[Any] = []
    monkeypatch.setattr(threads.WORKERS, "submit_urgent", lambda *job: jobs.append(job))
    futures = make(3)
    with futures[1]._condition:
        thread = threading.Thread(target=resolve, args=(futures,))
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
        assert [future.done() for future in futures] == [True, False, True]
    for function, *args in jobs:
        function(*args)
    assert futures[1].result(timeout=0) == "1"


def test_asyncio_waits_for_it() -> None:
    """``asyncio.wrap_future`` awaits it; cancelling the wrapper cancels nothing."""
    futures = make(2)

    async def main() -> list[str]:
        wrapped: list[asyncio.Future[str]] = [asyncio.wrap_future(future) for future in futures]
        cancelled: asyncio.Future[str] = asyncio.wrap_future(futures[0])
        cancelled.cancel()
        threading.Timer(0, resolve, (futures,)).start()
        return list(await asyncio.gather(*wrapped))

    assert asyncio.run(main()) == ["0", "1"]


def test_whoever_asks_while_the_outcome_comes_gets_it() -> None:
    """Waiting, a callback and the standard library's wait race with the outcome: none is lost."""

    def race(workers: concurrent.futures.Executor) -> None:
        futures, start = make(20), threading.Barrier(4)
        called: list[Any] = []

        def add_callbacks() -> None:
            for future in futures:
                future.add_done_callback(called.append)

        def at_once(job: Callable[[], Any]) -> Any:
            start.wait(10)
            return job()

        jobs: list[Callable[[], Any]] = [
            lambda: [future.result(timeout=10) for future in reversed(futures)],
            lambda: concurrent.futures.wait(futures, timeout=10).done,
            add_callbacks,
            lambda: resolve(futures),
        ]
        results, done, *_ = workers.map(at_once, jobs, timeout=20)
        assert results == [str(number) for number in reversed(range(20))]
        assert len(done) == 20
        assert sorted(map(id, called)) == sorted(map(id, futures))

    with concurrent.futures.ThreadPoolExecutor(4) as workers:
        for _ in range(300):
            race(workers)


class _Race:
    """A future, and those who ask for its outcome on threads of their own."""

    def __init__(self) -> None:
        (self.future,) = make(1)
        self.called: list[Any] = []
        self.added = 0
        self.results: list[concurrent.futures.Future[str]] = []
        self.conditions: list[object] = []
        self.pool = concurrent.futures.ThreadPoolExecutor(4)

    def wait(self, seconds: float = 10) -> None:
        """Wait on another thread; return when it does."""
        asked = len(self.results)
        self.results.append(self.pool.submit(self.future.result, seconds))
        give_up = time.monotonic() + 5
        while len(self.future._ask().wakes) <= asked and not self.future.done():
            assert time.monotonic() < give_up
            time.sleep(0.001)

    def wait_here(self) -> None:
        """Ask for the outcome, without waiting long."""
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self.future.result(0.001)

    def add_callback(self) -> None:
        self.added += 1
        self.future.add_done_callback(self.called.append)

    def settle(self) -> None:
        settle([self.future], ["id"], None)

    def lock(self) -> None:
        """Make the lock that the standard library asks for, or get it."""
        self.conditions.append(self.future._condition)


@pytest.mark.parametrize("other", [_Race.add_callback, _Race.wait, _Race.lock, _Race.settle])
@pytest.mark.parametrize(
    "interrupted", [_Race.add_callback, _Race.wait_here, _Race.lock, _Race.settle]
)
@pytest.mark.parametrize("asked", [False, True], ids=["", "somebody has asked"])
def test_nothing_is_lost_to_what_runs_in_a_garbage_collection(
    interrupted: Callable[[_Race], None], other: Callable[[_Race], None], asked: bool
) -> None:
    """Within an allocation, finalizers run and threads are switched: none loses what others do."""
    for number in itertools.count():
        race = _Race()
        if asked:
            race.add_callback()
            race.wait()

        def run_other(_: str, race: _Race = race) -> None:
            race.pool.submit(other, race).result(5)

        end = interrupt_collection(functools.partial(interrupted, race), number, run_other)
        assert end.raised is None
        assert not end.lost, end.place
        race.settle()
        assert [result.result(5) for result in race.results] == ["id"] * len(race.results)
        assert len(race.called) == race.added, end.place
        assert len(set(map(id, race.conditions))) <= 1, end.place
        race.pool.shutdown()
        if number and end.place is None:
            break


def test_it_can_be_set_alone_and_once() -> None:
    """A user's test may set it; a second outcome is refused, and one of the batch ignored."""
    future, other = make(2)
    called: list[Any] = []
    future.add_done_callback(called.append)
    future.set_exception(ValueError("set by hand"))
    assert called == [future]
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result("again")
    resolve([future, other])
    assert isinstance(future.exception(), ValueError)
    assert called == [future]
    assert other.result() == "1"


def test_it_is_made_of_little() -> None:
    """Until somebody asks for them it has neither condition nor waiters nor callbacks."""
    (future,) = make(1)
    assert not future.__dict__
    for settled in (False, True):
        assert future._asked is None
        assert future.done() is settled
        resolve([future])
