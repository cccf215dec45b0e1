"""Both drivers on virtual time replay the scenarios; below, what only threads do to a batch."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hedged_pubsub._core.events import Start
from hedged_pubsub._core.runs import Runs
from hedged_pubsub._core.settings import HedgingSettings

from .aio.fakes import Asyncio
from .aio.virtual_loop import EAGER, virtual_loop
from .fakes import FakeCall, Threads, handled, refuse
from .story import SCENARIOS, Permanent, Scenario, Transient, line

Make = Callable[..., Threads | Asyncio]


@pytest.fixture(params=["threads", "asyncio", EAGER])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make a driver that has some tokens."""
    with contextlib.ExitStack() as stack:

        def make(
            settings: HedgingSettings | None = HedgingSettings(),  # noqa: B008 - it is frozen
            tokens: int = 1,
        ) -> Threads | Asyncio:
            if request.param == "threads":
                return Threads(settings, tokens)
            return Asyncio(stack.enter_context(virtual_loop(request.param)), settings, tokens)

        yield make


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, make: Make) -> None:
    """The driver sends, cancels and resolves as the scenario tells, and counts it right."""
    before, after = scenario.tokens
    bench = make(scenario.settings, before)
    if scenario.settings is None and isinstance(bench, Threads):
        pytest.skip("where hedging is off, the official client publishes")
    earned, begun = bench.stats(), bench.clock()
    batch, story = bench.play(scenario)
    outcome = bench.end(batch)
    cancelled = [f"cancel {call.attempt}" for call in batch.calls if call.cancelled]
    story += [line(bench.clock() - begun, what) for what in (*cancelled, outcome)]

    assert story == [one for one in scenario.lines if "suppressed" not in one]
    stats = bench.stats()
    assert stats.tokens == pytest.approx(after if scenario.settings else 0)
    assert scenario.added(earned, stats) == scenario.counts
    bench.advance(1000.0)  # answers to losers, and our cancellations (R7)
    assert all(isinstance(error, Transient | Permanent) for error in batch.policy.judged)
    assert (batch.outcome, bench.stats()) == (outcome, stats)
    if isinstance(bench, Threads):
        assert bench.driver.undecided == set()
    else:
        assert bench.settled == [batch]
        assert bench.loop.timers == 0


def test_an_error_on_sending_a_hedge_is_the_hedges(make: Make) -> None:
    """R5: a hedge that cannot be sent does not fail the batch."""
    bench = make(tokens=2)
    batch = bench.send()
    bench.advance()
    batch.on_send = refuse(ValueError("closed channel"))
    bench.advance(2.5)
    assert batch.attempts == [0, 1, 2]
    batch.calls[0].succeed()
    assert bench.end(batch) == "resolve 0"


@pytest.mark.parametrize("where", ["the request", "the orders", "sending", "the predicate"])
def test_an_error_ends_the_batch(make: Make, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: whatever raises, the batch fails with that, and the next batch is sent.

    Sending may fail by a closed channel or an interceptor, which is judged as an answer is; on
    threads whoever sends may be interrupted.
    """
    bench = make()
    is_interrupted = where == "sending" and isinstance(bench, Threads)
    defect = KeyboardInterrupt() if is_interrupted else ZeroDivisionError()
    batch = bench.batch()
    owner, name = {
        "the request": (bench.rpc, "commit"),
        "the orders": (Runs, "commit"),
        "sending": (batch, "on_send"),
        "the predicate": (batch.policy, "judge"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, refuse(defect))
        bench.driver.submit(batch)
        bench.advance()
        if where == "the predicate":
            batch.calls[0].fail(Transient())
        bench.end(batch)
    assert batch.error is defect
    assert batch.policy.judged == [defect] * (where == "sending")
    batch = bench.hedged()
    batch.calls[1].succeed()
    assert bench.end(batch) == "resolve 1"


def test_a_decided_batch_is_let_go(make: Make) -> None:
    """Requests are held until then, for gRPC cancels one that is dropped; then nothing is."""
    bench = make()
    batch = bench.send()
    bench.advance()
    call = weakref.ref(batch.calls.pop())
    gc.collect()
    original = call()
    assert original is not None
    original.succeed()
    bench.end(batch)
    if isinstance(bench, Asyncio):
        bench.settled.clear()
        bench.rpc.method.requests.clear()
    decided = weakref.ref(batch)
    del original, batch
    gc.collect()
    assert call() is None
    assert decided() is None


# --- Threads.


def test_a_hedge_decided_over_while_it_is_sent_is_cancelled() -> None:
    """The original is answered on another thread while the hedge is being handed to gRPC."""
    bench = Threads()
    batch = bench.send()
    batch.on_send = lambda _: batch.calls[0].succeed()
    bench.advance(1.0)
    assert batch.outcome == "resolve 0"
    assert batch.calls[1].cancelled
    stats = bench.stats()
    assert (stats.hedges_sent, stats.attempts_cancelled, stats.tokens) == (1, 1, 0.1)


def test_a_hedge_decided_over_before_it_is_sent_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R9: the workers are late, and the original was answered: the token goes back."""
    bench = Threads()
    driver = bench.driver
    waiting: list[tuple[Any, ...]] = []
    monkeypatch.setattr(driver._workers, "submit_urgent", lambda *job: waiting.append(job))
    monkeypatch.setattr(driver, "runs_users_code", lambda batch: True)
    batch = bench.hedged()
    batch.calls[0].succeed()
    ((function, orders, *args),) = waiting
    assert Start(1, 10.0) in orders
    function(orders, *args)
    assert batch.attempts == [0]
    assert batch.outcome == "resolve 0"
    assert (bench.stats().hedges_sent, bench.stats().tokens) == (0, 1.1)


def test_a_lock_is_held_to_decide_and_not_to_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: threads decide one at a time; requests, judging and log lines may run a user's code."""
    bench = Threads()
    held: list[bool] = []
    free: list[bool] = []

    def note(*_: object) -> bool:
        free.append(not bench.driver._engine_lock._is_owned())
        return True

    def decide(ask: Any, *args: Any, **named: Any) -> Any:
        held.append(bench.driver._engine_lock._is_owned())
        return ask(bench.driver._runs, *args, **named)

    for name in ("commit", "handle", "is_wanted"):
        ask = functools.partial(decide, getattr(Runs, name))
        monkeypatch.setattr(bench.driver._runs, name, ask)
    batch = bench.send(on_send=note)
    judge, cancel = batch.policy.judge, FakeCall.cancel
    monkeypatch.setattr(batch.policy, "judge", lambda error: note() and judge(error))
    monkeypatch.setattr(FakeCall, "cancel", lambda call: note() and cancel(call))
    with handled(note):
        batch.calls[0].fail(Transient())
        bench.advance(1.0)
        batch.calls[2].succeed()
    assert batch.attempts == [0, 0, 1]
    assert free == [True] * 6
    assert held == [True] * 10
