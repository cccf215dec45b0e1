"""The asyncio driver on virtual time: what only an event loop does to a batch."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions

from hedged_pubsub._core.events import Succeeded
from hedged_pubsub._core.settings import HedgingSettings

from ..fakes import fail_to_log, handled, refuse
from ..story import Permanent, Transient
from .fakes import Asyncio, Interruption
from .virtual_loop import EAGER, virtual_loop


@pytest.fixture(params=["lazy", EAGER])
def bench(request: pytest.FixtureRequest) -> Iterator[Asyncio]:
    """Make a driver that has three tokens; no timer is left in the end."""
    with virtual_loop(request.param) as loop:
        yield Asyncio(loop, HedgingSettings(), 3)
        assert loop.timers == 0, "a decided batch leaves no timer behind"


def test_a_losers_late_error_is_nobodys(bench: Asyncio) -> None:
    """A loser that fails in spite of being cancelled is neither judged nor reported by asyncio."""
    batch = bench.hedged()
    original, hedge = batch.calls
    hedge.succeed()
    original.fail(Permanent())  # in the same turn, so that there is nothing left to cancel
    assert bench.end(batch) == "resolve 1"
    del original
    gc.collect()
    cancelled = sum(call.cancelled for call in batch.calls)
    assert bench.stats().attempts_cancelled == cancelled


def test_nothing_is_decided_before_submit_returns(bench: Asyncio) -> None:
    """An eager task may have ended by then; whoever publishes has no future yet."""
    batch = bench.send(on_send=lambda call: call.succeed())
    assert batch.outcome == ""
    assert bench.end(batch) == "resolve 0"


def test_an_interruption_in_the_predicate_ends_the_batch(bench: Asyncio) -> None:
    """R8: what is no ``Exception`` goes on to the loop, and comes to no task as its own."""
    reported: list[object] = []
    bench.loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    batch, defect = bench.send(on_send=lambda call: call.fail(Transient())), Interruption()
    batch.policy.judge = refuse(defect)
    assert bench.end(batch) == "fail RuntimeError"
    assert batch.error is not None
    assert batch.error.__cause__ is defect
    assert reported == [defect]


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
def test_a_task_that_others_cancel_ends_the_batch(bench: Asyncio, begun: bool) -> None:
    """R8: when all tasks of the loop are cancelled, no future stays pending; none is cancelled."""
    batch = bench.send()
    if begun:
        bench.advance()
    for task in asyncio.all_tasks(bench.loop):
        task.cancel()
    bench.end(batch)
    assert isinstance(batch.error, exceptions.Cancelled)


def test_closing_waits_for_tasks_and_not_for_ever(bench: Asyncio) -> None:
    """An interceptor that swallows the cancellation holds it up for the timeout only."""
    bench.send()
    bench.advance()
    call = bench.rpc.call

    async def call_and_stay(*args: Any) -> list[str]:
        try:
            ids: list[str] = await call(*args)
            return ids
        finally:
            await asyncio.sleep(60)

    for seconds, rpc_call in ((0, call), (1.0, call_and_stay)):
        bench.rpc.call = rpc_call
        bench.send()
        bench.advance()
        bench.driver.abandon(RuntimeError())
        bench.loop.run(bench.driver.wait_for_tasks(1.0))
        assert bench.loop.now == pytest.approx(seconds)
    bench.advance(60)


def test_an_interruption_of_abandon_leaves_the_other_batches_as_they_were(bench: Asyncio) -> None:
    """R8: a span processor may raise anything; whoever closes again ends and cancels the rest."""
    batches = [bench.send() for _ in range(3)]
    bench.advance()
    batches[0].end_spans = refuse(Interruption())  # type: ignore[method-assign]
    with pytest.raises(Interruption):
        bench.driver.abandon(RuntimeError("closed"))
    bench.driver.abandon(RuntimeError("closed"))
    bench.advance()
    assert [batch.outcome for batch in batches] == ["fail RuntimeError"] * 3
    assert all(call.cancelled for batch in batches for call in batch.calls)


def test_a_loop_that_calls_early_loses_no_wakeup(bench: Asyncio) -> None:
    """A timer may be early by the resolution of the loop's clock: uvloop's counts milliseconds."""
    batch = bench.send()
    bench.advance()
    batch.timer.cancel()
    bench.driver._wake(batch, 1.0)
    bench.advance()
    assert bench.loop.now == 0
    assert batch.attempts == [0, 1]
    assert batch.run.wake_at == 2.0
    batch.calls[1].succeed()
    bench.end(batch)


def test_requests_do_not_inherit_the_publishers_context(bench: Asyncio) -> None:
    """Who happens to complete a batch, within a span perhaps, has no part in its requests."""
    span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")
    seen: list[str] = []
    batch = bench.batch(on_send=lambda _: seen.append(span.get()))
    judge = batch.policy.judge

    def note_and_judge(error: BaseException) -> object:
        seen.append(span.get())
        return judge(error)

    batch.policy.judge = note_and_judge

    async def main() -> None:
        span.set("a user's")
        bench.driver.submit(batch)
        await asyncio.sleep(0.5)
        batch.calls[0].fail(Transient())
        await asyncio.sleep(1.0)
        assert span.get() == "a user's"

    bench.loop.run(main())
    batch.calls[1].succeed()
    bench.end(batch)
    assert batch.attempts == [0, 0, 1]
    assert seen == ["none"] * 4


def test_a_log_handler_that_raises_breaks_nothing(
    bench: Asyncio, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines about hedges are a user's code: batches are decided, and go on, without them.

    R8: an event that cannot happen ends its batch, even where that cannot be logged.
    """
    with handled(fail_to_log):
        won = bench.hedged()
        won.calls[1].succeed()
        assert bench.end(won) == "resolve 1"
        *abandoned, broken = [bench.send() for _ in range(3)]
        bench.advance()
        bench.driver._feed(broken, Succeeded(3))
        bench.advance(1.0)
        bench.driver.abandon(RuntimeError("closed"))
    assert [batch.outcome for batch in abandoned] == ["fail RuntimeError"] * 2
    assert "attempt 3 cannot end" in str(broken.error)
    bench.advance()
    assert broken.calls[0].cancelled
    assert capsys.readouterr().err.count("ZeroDivisionError: hedge 1 on topic") == 3


def test_a_task_factory_that_raises_ends_the_batch(bench: Asyncio) -> None:
    """R8: where no task can be made, the batch fails with the reason."""
    defect = ZeroDivisionError()
    factory = bench.loop.get_task_factory()
    bench.loop.set_task_factory(refuse(defect))
    batch = bench.send()
    bench.loop.set_task_factory(factory)
    assert batch.error is defect
    assert bench.settled == [batch]
