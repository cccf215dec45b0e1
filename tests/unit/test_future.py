"""The future of a message is a ``concurrent.futures.Future`` for all who look."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import threading
from typing import Any

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub._sync.future import PublishFuture, SharedCondition, invoke_callbacks, settle


def make(count: int) -> tuple[list[PublishFuture], SharedCondition]:
    """Make the futures of one batch."""
    condition = SharedCondition()
    return [PublishFuture(condition) for _ in range(count)], condition


def resolve(futures: list[PublishFuture], condition: SharedCondition) -> None:
    """Resolve them with their numbers."""
    ids = [str(number) for number in range(len(futures))]
    settle(futures, condition, ids, None, invoke_callbacks)


def fail(futures: list[PublishFuture], condition: SharedCondition, error: Exception) -> None:
    """Fail them all."""
    settle(futures, condition, itertools.repeat(None), error, invoke_callbacks)


def test_it_is_the_official_future() -> None:
    """Its type is what programs check for."""
    (future,), _ = make(1)
    assert isinstance(future, concurrent.futures.Future)
    assert isinstance(future, pubsub_v1.publisher.futures.Future)


def test_pending() -> None:
    """A pending future says so in every way, and cannot be cancelled."""
    (future,), _ = make(1)
    assert not future.done()
    assert future.running()
    assert future.cancel() is False
    assert future.cancelled() is False
    assert "pending" in repr(future)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(timeout=0)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.exception(timeout=0)


def test_resolved() -> None:
    """Each future has the id of its message."""
    futures, condition = make(3)
    resolve(futures, condition)
    assert [future.result(timeout=0) for future in futures] == ["0", "1", "2"]
    assert all(future.done() and not future.running() for future in futures)
    assert futures[0].exception() is None
    assert "finished" in repr(futures[0])


def test_failed() -> None:
    """All futures of the batch have the error."""
    futures, condition = make(2)
    error = ValueError("no")
    fail(futures, condition, error)
    for future in futures:
        assert future.exception(timeout=0) is error
        with pytest.raises(ValueError, match="no"):
            future.result()


def test_callbacks_before_and_after() -> None:
    """A callback is called once: when the future is done, or at once if it is."""
    (future, other), condition = make(2)
    called: list[Any] = []
    future.add_done_callback(called.append)
    future.add_done_callback(called.append)
    resolve([future, other], condition)
    assert called == [future, future]
    future.add_done_callback(called.append)
    assert called == [future] * 3


def test_callbacks_run_without_the_condition_held_and_after_all_results() -> None:
    """A callback may wait for another message of its batch, on any thread."""
    (first, second), condition = make(2)
    seen: list[str] = []

    def from_another_thread(_: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append(second.result(timeout=1)))
        thread.start()
        thread.join()

    first.add_done_callback(from_another_thread)
    resolve([first, second], condition)
    assert seen == ["1"]


def test_a_callback_that_raises_does_not_keep_the_next_from_being_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even ``SystemExit`` is logged and left behind."""
    (future,), condition = make(1)
    called: list[Any] = []

    def leave(_: Any) -> None:
        raise SystemExit

    future.add_done_callback(leave)
    future.add_done_callback(called.append)
    with caplog.at_level(logging.ERROR):
        resolve([future], condition)
    assert called == [future]
    assert "SystemExit" in caplog.text


def test_waiting_threads_wake_up() -> None:
    """Threads that wait for futures of one batch each get their own result."""
    futures, condition = make(5)
    seen: dict[int, str] = {}
    started = threading.Barrier(6)

    def wait_for(number: int) -> None:
        started.wait(5)
        seen[number] = futures[number].result(timeout=5)

    threads = [threading.Thread(target=wait_for, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    started.wait(5)
    resolve(futures, condition)
    for thread in threads:
        thread.join(5)
    assert seen == {number: str(number) for number in range(5)}


def test_a_wakeup_for_another_future_is_no_timeout() -> None:
    """The condition is shared: a wake-up that is not its own must not end a wait."""
    (alone, waited_for), _ = make(2)
    seen: list[str] = []
    ready = threading.Event()

    def wait_for() -> None:
        ready.set()
        seen.append(waited_for.result(timeout=5))

    thread = threading.Thread(target=wait_for)
    thread.start()
    assert ready.wait(5)
    alone.set_result("alone")
    assert seen == []
    waited_for.set_result("own")
    thread.join(5)
    assert seen == ["own"]


def test_the_standard_library_waits_for_it() -> None:
    """``wait`` and ``as_completed`` work, also for several futures of one batch."""
    futures, condition = make(3)
    other, other_condition = make(1)
    done, pending = concurrent.futures.wait([*futures, *other], timeout=0)
    assert not done
    assert len(pending) == 4
    resolver = threading.Thread(target=lambda: resolve(futures, condition))
    resolver.start()
    done, pending = concurrent.futures.wait(
        [*futures, *other], return_when=concurrent.futures.FIRST_COMPLETED, timeout=5
    )
    assert done <= set(futures)
    assert done
    fail(other, other_condition, ValueError())
    completed: set[Any] = set(concurrent.futures.as_completed([*futures, *other], timeout=5))
    assert completed == {*futures, *other}
    resolver.join()


def test_asyncio_waits_for_it() -> None:
    """``asyncio.wrap_future`` awaits it; cancelling the wrapper cancels nothing."""
    futures, condition = make(2)

    async def main() -> list[str]:
        wrapped: list[asyncio.Future[str]] = [asyncio.wrap_future(future) for future in futures]
        cancelled: asyncio.Future[str] = asyncio.wrap_future(futures[0])
        cancelled.cancel()
        threading.Timer(0, resolve, (futures, condition)).start()
        return list(await asyncio.gather(*wrapped))

    assert asyncio.run(main()) == ["0", "1"]


def test_whoever_asks_while_the_outcome_comes_gets_it() -> None:
    """Waiting, a callback and the standard library's wait race with the outcome: none is lost."""
    workers = concurrent.futures.ThreadPoolExecutor(4)
    for _ in range(300):
        futures, condition = make(20)
        start = threading.Barrier(4)
        called: list[Any] = []

        def outcome(futures: Any = futures, condition: Any = condition, start: Any = start) -> None:
            start.wait(10)
            resolve(futures, condition)

        def results(futures: Any = futures, start: Any = start) -> list[str]:
            start.wait(10)
            return [future.result(timeout=10) for future in reversed(futures)]

        def all_done(futures: Any = futures, start: Any = start) -> int:
            start.wait(10)
            return len(concurrent.futures.wait(futures, timeout=10).done)

        def callbacks(futures: Any = futures, start: Any = start, called: Any = called) -> None:
            start.wait(10)
            for future in futures:
                future.add_done_callback(called.append)

        jobs = [workers.submit(job) for job in (outcome, results, all_done, callbacks)]
        assert jobs[1].result(20) == [str(number) for number in reversed(range(20))]
        assert jobs[2].result(20) == 20
        jobs[0].result(20)
        jobs[3].result(20)
        assert sorted(map(id, called)) == sorted(map(id, futures))
    workers.shutdown()


def test_it_can_be_set_alone_and_once() -> None:
    """A user's test may set it; a second outcome is refused, and one of the batch ignored."""
    (future, other), condition = make(2)
    called: list[Any] = []
    future.add_done_callback(called.append)
    future.set_exception(ValueError("set by hand"))
    assert called == [future]
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result("again")
    resolve([future, other], condition)
    assert isinstance(future.exception(), ValueError)
    assert called == [future]
    assert other.result() == "1"


def test_it_is_made_of_little() -> None:
    """Until somebody asks for them it has neither waiters nor callbacks."""
    (future,), _ = make(1)
    assert future._lazy_callbacks is None
    assert future._lazy_waiters is None
    assert not future.__dict__
