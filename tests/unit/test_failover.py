"""Failover (R17, C7) and waits that are shared (R14), in both drivers on virtual time."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.credentials import Credentials
from google.rpc.error_details_pb2 import RetryInfo

from hedged_pubsub import HedgingSettings
from hedged_pubsub._core.connections import Connection, Connections
from hedged_pubsub._core.events import ORIGINAL, Failed
from hedged_pubsub._google.token_wait import shared_token
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.future import PublishFuture, settle

from .aio.fakes import Asyncio
from .aio.virtual_loop import virtual_loop
from .fakes import FakeBatch, Threads

SETTINGS = HedgingSettings(initial_tokens=50)
UNAVAILABLE = exceptions.ServiceUnavailable("Stream removed")
REFUSED = exceptions.ServiceUnavailable("failed to connect to all addresses")


class Retries:
    """A call policy that retries what is UNAVAILABLE or refused, after these seconds."""

    every_timeout = None
    has_constant_timeout = True
    asks_user = False
    total_timeout = 600.0

    def __init__(self, *backoffs: float) -> None:
        self._backoffs = iter(backoffs)

    def start_call(self) -> Retries:
        return self

    def judge(self, error: BaseException) -> Failed:
        transient = isinstance(error, exceptions.GoogleAPICallError)
        return Failed(ORIGINAL, error, transient, next(self._backoffs, None))


class Scene:
    """A driver with two connections, whose states a test sets."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        rpc = self.rpc = bench.rpc
        self.connections: Connections[Any] = rpc._connections
        self.first = self.connections.of(0)
        self.second: Connection[Any] = Connection(type(rpc._method)(None, object()), own=True)
        self.connections.own.append(self.second)
        self.connections._hedges = self.second
        self.ready = {self.first: True, self.second: True}
        by_channel = {one.method.channel: one for one in self.ready}
        rpc._connect = lambda channel: self.ready[by_channel[channel]]
        self.advance, self.clock = bench.advance, bench.clock

    def send(self, *backoffs: float) -> FakeBatch:
        batch: FakeBatch = self.bench.send(policy=Retries(*backoffs))
        self.advance()
        return batch

    def fail(self, batch: FakeBatch, error: Exception = UNAVAILABLE) -> None:
        batch.calls[-1].fail(error)
        self.advance()

    def store(self) -> None:
        """Let a fresh batch be stored."""
        batch = self.send()
        batch.calls[-1].succeed()
        self.bench.end(batch)


@pytest.fixture(params=["threads", "asyncio"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Make a driver with tokens."""
    with contextlib.ExitStack() as stack:
        if request.param == "threads":
            yield Scene(Threads(SETTINGS, 0))
        else:
            bench = Asyncio(stack.enter_context(virtual_loop()), SETTINGS, 0)
            yield Scene(bench)
            bench.driver.abandon(RuntimeError())
            bench.advance()


def test_sent_again_at_once_on_the_other_connection(scene: Scene) -> None:
    """The connection was lost under it; later originals go there, too, until it is back."""
    batch = scene.send(30.0)
    scene.ready[scene.first] = False
    scene.fail(batch)
    assert batch.attempts == [0, 0]
    assert batch.connection is scene.second
    assert scene.send().connection is scene.second
    scene.ready[scene.first] = True
    assert scene.send().connection is scene.first


def test_sent_again_at_once_where_there_is_no_other(scene: Scene) -> None:
    """A connection that was lost is made anew; but not again and again."""
    scene.ready = dict.fromkeys(scene.ready, False)
    batch = scene.send(30.0, 40.0)
    scene.fail(batch)
    assert batch.attempts == [0, 0]
    assert batch.connection is scene.first
    scene.fail(batch)
    assert batch.attempts == [0, 0]


def test_what_the_service_answers_is_no_lost_connection(scene: Scene) -> None:
    """UNAVAILABLE over a connection that stands waits, and moves nothing."""
    batch = scene.send(0.5)
    scene.fail(batch)
    assert batch.attempts == [0]
    scene.advance(0.5)
    assert batch.attempts == [0, 0]
    assert batch.connection is scene.first


def test_what_could_not_be_sent_goes_elsewhere_at_once(scene: Scene) -> None:
    """The first connection is in gRPC's reconnect backoff."""
    scene.ready[scene.first] = False
    batch = scene.send(30.0)
    scene.fail(batch, REFUSED)
    assert batch.attempts == [0, 0]
    assert batch.connection is scene.second


def test_originals_on_a_dead_connection_count_as_unavailable(scene: Scene) -> None:
    """Each is sent once more on the other one, at once; its old call is cancelled, and unheard."""
    stuck = [scene.send(30.0) for _ in range(3)]
    scene.bench.rpc._open = lambda: None
    for _ in range(5):
        lost = scene.send()
        scene.advance(1.0)
        lost.calls[-1].succeed()
        scene.bench.end(lost)
    scene.advance(0.01)
    for batch in stuck:
        assert batch.connection is scene.second
        assert batch.calls[0].cancelled
        originals = [call for call in batch.calls if call.attempt == 0]
        assert len(originals) == 2
        batch.calls[0].succeed()
        assert batch.outcome == ""
        originals[1].succeed()
        assert scene.bench.end(batch) == "resolve 0"


@pytest.mark.parametrize("answered", [False, True])
def test_one_lost_batch_of_five_in_flight(scene: Scene, answered: bool) -> None:
    """C3: one token finds a dead connection, if half a second later no original was answered."""
    lost, *waiting = [scene.send(30.0) for _ in range(5)]
    scene.rpc._open = lambda: None
    scene.bench.driver._runs.topics["topic"].bucket._level = 1_000_000
    scene.advance(1.1)
    assert [batch.attempts for batch in waiting] == [[0]] * 4
    lost.calls[-1].succeed()
    scene.bench.end(lost)
    if answered:
        scene.first.answered()
    scene.advance(1.4)
    assert [batch.attempts for batch in waiting] == ([[0]] if answered else [[0, 0]]) * 4
    assert scene.send().connection is (scene.first if answered else scene.second)


def test_a_hedge_that_shares_the_wait_is_not_sent(scene: Scene) -> None:
    """R14: neither connection is there; one copy goes out, and gets one more delay."""
    scene.ready = dict.fromkeys(scene.ready, False)
    batch = scene.send()
    scene.advance(3.5)
    assert batch.attempts == [0]
    scene.ready = dict.fromkeys(scene.ready, True)
    scene.advance(1.0)
    assert batch.attempts == [0]
    scene.advance(1.0)
    assert batch.attempts == [0, 1]
    assert scene.bench.stats().hedges_due == 1


def test_a_hedge_goes_where_there_is_a_connection(scene: Scene) -> None:
    """R14: its own one is lost, that of the original stands; or the other way round."""
    scene.ready[scene.second] = False
    batch = scene.send()
    scene.advance(1.0)
    assert (batch.attempts, batch.hedge_connections) == ([0, 1], {1: scene.first})
    scene.ready = {scene.first: False, scene.second: True}
    batch = scene.send()
    scene.advance(1.0)
    assert (batch.attempts, batch.hedge_connections) == ([0, 1], {1: scene.second})
    assert scene.send().connection is scene.second, "fresh ones fail over with it"


def test_proof_sends_the_waiting_ones(scene: Scene) -> None:
    """R16: nothing waits for its backoff once another batch was stored."""
    waiting = [scene.send(30.0) for _ in range(4)]
    for batch in waiting:
        scene.fail(batch)
    scene.advance(0.5)
    scene.store()
    scene.advance(0.01)
    assert [batch.attempts for batch in waiting] == [[0, 0], [0], [0], [0]]
    waiting[0].calls[-1].succeed()
    scene.advance(0.01)
    assert [len(batch.attempts) for batch in waiting] == [2, 2, 2, 1]


def test_retry_info_is_heeded(scene: Scene) -> None:
    """R15: of an original; the same answer to a hedge suspends hedging, too."""
    error = exceptions.ResourceExhausted("no", details=[RetryInfo(retry_delay={"seconds": 3})])
    slow = scene.send()
    refused = scene.send(30.0)
    scene.fail(refused, error)
    scene.advance(2.5)
    assert slow.attempts == [0]
    scene.advance(1.0)
    assert slow.attempts == [0, 1]
    scene.fail(slow, error)
    scene.advance(2.75)
    assert slow.attempts == [0, 1]
    scene.advance(1.0)
    assert slow.attempts == [0, 1, 2]


def test_nothing_can_be_connected(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """One warning after five seconds, with what gRPC says."""
    scene.ready = dict.fromkeys(scene.ready, False)
    batch = scene.send(*[0.5] * 40)
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            scene.fail(batch, REFUSED)
            scene.advance(0.5)
    (record,) = caplog.records
    assert "nothing can be connected for 5 s" in record.getMessage()
    assert "failed to connect" in record.getMessage()


# --- The connections alone, and the token.


def test_home_is_another_endpoint() -> None:
    """C7: where hedges have an endpoint of their own, originals go home after C4 as well."""
    for has_endpoint in (True, False):
        connections = Connections("client", can_open=True, has_endpoint=has_endpoint)
        connections.opened("second")
        connections.checked(is_ready=True, pause=0.1, now=0.0)
        client, second = connections.of(0), connections.of(1)
        while not connections.lost(client, second, 0.0 if client._losses < 4 else 1.0):
            pass
        assert connections.of(0) is second
        assert (connections.home is client) is has_endpoint
        connections.check_home(is_ready=True)
        assert connections.of(0) is second, "frozen, it looks connected"
        connections.check_home(is_ready=False)
        connections.check_home(is_ready=True)
        assert (connections.of(0) is client) is has_endpoint


class Slow(Credentials):
    """Credentials whose token takes until a test lets it come."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refreshes = 0
        self.error = error
        self.begun, self.go_on = threading.Event(), threading.Event()

    def refresh(self, _request: object) -> None:
        self.refreshes += 1
        self.begun.set()
        self.go_on.wait(10)
        if self.error is not None:
            raise self.error
        self.token = "a token"  # noqa: S105


@pytest.mark.parametrize("error", [None, ValueError("no key")])
def test_one_refresh_for_all_requests(error: Exception | None) -> None:
    """R14: who comes meanwhile waits for it, and shares its error."""
    slow = Slow(error)
    token = shared_token(slow, None, None, None)
    assert isinstance(token, Slow)
    seen = [token.is_awaited]
    headers: list[dict[str, str]] = [{} for _ in range(5)]
    errors: list[Exception] = []

    def request(number: int) -> None:
        try:
            token.before_request(None, "method", "url", headers[number])
        except ValueError as failure:
            errors.append(failure)

    requests = [threading.Thread(target=request, args=(number,)) for number in range(5)]
    for thread in requests:
        thread.start()
    assert slow.begun.wait(10)
    seen.append(token.is_awaited)
    slow.go_on.set()
    for thread in requests:
        thread.join(10)
    assert [*seen, token.is_awaited] == [False, True, False]
    if error is None:
        assert slow.refreshes == 1
        assert all(one["authorization"] == "Bearer a token" for one in headers)
    else:
        assert len(errors) == 5
        assert slow.refreshes < 5


def test_a_token_on_its_way_is_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """R14: no token of the bucket is spent on one that only waits with the original."""
    awaited: Callable[[], bool] = lambda: scene.clock() < 1.25  # noqa: E731

    class Token:
        is_awaited = property(lambda _: awaited())

    monkeypatch.setattr(scene.rpc, "_token", Token())
    batch = scene.send()
    scene.advance(2.0)
    assert batch.attempts == [0]
    scene.advance(1.0)
    assert batch.attempts == [0, 1]


def test_a_failed_batch_that_nobody_asks_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, also after a flush, unless somebody asked for one of its messages in time."""
    unasked = threads.Unasked()
    monkeypatch.setattr(threads, "UNASKED", unasked)
    with caplog.at_level(logging.WARNING):
        for ask in (
            lambda future: future.exception(),
            lambda future: refuse_nothing(future.result),
            lambda future: future.add_done_callback(lambda _: None),
        ):
            batch = [PublishFuture() for _ in range(3)]
            settle(batch, [None] * 3, ValueError("asked for"))
            ask(batch[1])
            del batch, ask
        batch = [PublishFuture() for _ in range(3)]
        batch[0].wait(0.0)
        settle(batch, [None] * 3, ValueError("nobody cares"))
        del batch
        batch = [PublishFuture()]
        settle(batch, [None], ValueError("within a minute"))
        del batch
        assert threads.WORKERS.wait_until_idle(10)
    (record,) = [one for one in caplog.records if "nobody has asked" in one.getMessage()]
    assert "3 messages" in record.getMessage()
    assert "nobody cares" in record.getMessage()


def refuse_nothing(call: Callable[[], object]) -> None:
    """Call what raises."""
    with contextlib.suppress(ValueError):
        call()


@pytest.mark.parametrize("heard", ["nothing", "originals", "both"])
def test_a_hedge_that_may_be_stuck(scene: Scene, heard: str) -> None:
    """C1: where its connection is silent and that of the originals is not, the next is sent there.

    The same batch may be what the service is slow with: then all hedges have their own connection.
    """
    batch = scene.send()
    scene.advance(1.5)
    if heard != "nothing":
        scene.store()
    if heard == "both":
        scene.second.answered()
    scene.advance(2.0)
    first, second = scene.first, scene.second
    assert batch.attempts == [0, 1, 2, 3]
    assert [batch.hedge_connections[attempt] for attempt in (1, 2, 3)] == {
        "nothing": [second, second, second],
        "originals": [second, first, second],
        "both": [second, second, second],
    }[heard]
    next(call for call in batch.calls if call.attempt == 2).succeed()
    scene.bench.end(batch)
    assert (second if heard != "originals" else first)._losses == 0
