"""The connections of a publisher on virtual time: opened, checked, replaced and closed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from hedged_pubsub._core.connections import CHECK_INTERVAL, FIRST_PAUSE, MIN_LOSSES, MIN_SILENCE

from .fakes import FakeBatch, FakeCall, FakeChannel, FakeRpc, VirtualTime, refuse


class Bench:
    """Publish requests whose channels a test connects."""

    def __init__(self) -> None:
        self.time = VirtualTime()
        self.channels: list[FakeChannel] = []
        self.is_ready = True  # whether new ones are connected at once
        self.rpc = FakeRpc(self.time, self.make_channel)

    def make_channel(self) -> FakeChannel:
        self.channels.append(FakeChannel(is_ready=self.is_ready))
        return self.channels[-1]

    def send(self, attempt: int = 0, batch: FakeBatch | None = None) -> FakeCall:
        batch = batch or FakeBatch()
        batch.request = batch
        call: FakeCall = self.rpc.start(batch, attempt, None)
        self.time.advance(self.time.now)
        return call

    def lose(self, then: Callable[[], object] = lambda: None) -> None:
        """Let hedges decide as many batches as make the connection of the originals dead."""
        for _ in range(MIN_LOSSES):
            batch = FakeBatch()
            original, hedge = self.send(0, batch), self.send(1, batch)
            self.time.advance(self.time.now + MIN_SILENCE)
            self.rpc.stored(batch, 1)
            hedge.succeed()
            self.rpc.outcome(batch, hedge)
            self.rpc.cancel(original)
            then()
        self.time.advance(self.time.now)

    @property
    def used(self) -> list[FakeChannel | None]:
        """The channels that originals and hedges are sent on; ``None`` for the client's."""
        return [self.rpc._connections.of(attempt).method.channel for attempt in (0, 1)]

    @property
    def closed(self) -> list[bool]:
        return [channel.closed for channel in self.channels]


@pytest.fixture
def bench() -> Bench:
    """Make publish requests."""
    return Bench()


def test_a_connection_is_opened_with_the_first_batch(bench: Bench) -> None:
    """C1 and C6: once, and is checked for a second or two; then batches ask, every ten seconds."""
    assert bench.channels == []
    bench.is_ready = False
    bench.send()
    bench.send()
    (channel,) = bench.channels
    bench.time.advance(60.0)
    assert channel.connects[:3] == pytest.approx([0.0, FIRST_PAUSE, 3 * FIRST_PAUSE])
    assert channel.connects[-1] < 3
    assert bench.time.pending == 0, "nobody checks for an idle publisher"
    assert bench.used == [None, None]
    channel.is_ready = True
    for seconds in (60.0, 60.0 + CHECK_INTERVAL - 0.01, 60.0 + CHECK_INTERVAL):
        bench.time.advance(seconds)
        bench.send()
    assert channel.connects[-2:] == [60.0, 60.0 + CHECK_INTERVAL]
    assert bench.used == [None, channel]


def test_a_dead_connection_is_replaced(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """C4 and C5: one line tells of it; the client's channel is not closed, an own one is."""
    bench.send()
    with caplog.at_level(logging.WARNING):
        bench.lose()
    second, third = bench.channels
    assert bench.used == [second, third]
    assert len(caplog.records) == 1
    held = bench.send()
    bench.lose()
    assert bench.used == [third, None], "two are open already"
    assert bench.closed == [False, False]
    bench.rpc.cancel(held)
    assert bench.closed == [True, False]


def test_an_answer_keeps_the_connection(bench: Bench) -> None:
    """C3: that of one original is enough."""

    def answer() -> None:
        batch = FakeBatch()
        bench.send(0, batch)
        bench.rpc.stored(batch, 0)

    bench.lose(answer)
    assert bench.used == [None, *bench.channels]


def test_a_connection_that_cannot_be_opened(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """C5: hedges share the first one, one line says so, and publishing goes on."""
    error = OSError("no descriptor left")
    bench.rpc._make_channel = refuse(error)
    with caplog.at_level(logging.ERROR):
        bench.send()
        bench.send()
    assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [error]
    assert bench.used == [None, None]


def test_closed_while_one_is_opened_or_connected(bench: Bench) -> None:
    """It is closed, and checked no more; nothing else is opened."""

    def close_and_make() -> FakeChannel:
        late.rpc.close()
        return late.make_channel()

    late = Bench()
    late.rpc._make_channel = close_and_make
    bench.is_ready = False
    for one in (bench, late):
        one.send()
        one.rpc.close()
        one.time.advance(60.0)
        one.send()
        assert one.closed == [True]
        assert one.time.pending == 0
        assert len(one.channels[0].connects) == (one is bench)


def test_a_request_that_cannot_be_started_is_not_in_flight(bench: Bench) -> None:
    """Or its connection would never be closed."""
    bench.send()
    with pytest.raises(ValueError, match="closed channel"):
        bench.send(1, FakeBatch(on_send=refuse(ValueError("closed channel"))))
    connection = bench.rpc._connections.of(1)
    assert (connection.in_flight, connection.starting) == (set(), 0)
    call = bench.send(1)
    assert (connection.in_flight, connection.starting) == ({call}, 0)
