"""Which connection an attempt is sent on, and when one is dead (C1-C6)."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub._core.connections import (
    CHECK_INTERVAL,
    FIRST_PAUSE,
    MAX_OWN,
    MAX_PAUSE,
    MIN_LOSSES,
    MIN_SILENCE,
    Connection,
    Connections,
    Todo,
)
from hedged_pubsub._core.events import Event, Order, Resolve, Start, Succeeded
from hedged_pubsub._core.runs import Runs
from hedged_pubsub._core.settings import HedgingSettings

from .replay import core_batch, run

ORIGINAL, HEDGE = 0, 1
JUST_BELOW = math.nextafter(MIN_SILENCE, 0)


def open_one(connections: Connections[str], method: str) -> None:
    """Open a connection, and connect it."""
    assert connections.opened(method)
    assert not connections.checked(is_ready=True, pause=FIRST_PAUSE, now=0.0)


def with_second() -> Connections[str]:
    """Make connections of which the second is connected."""
    connections = Connections("client", can_open=True)
    open_one(connections, "second")
    return connections


def kill(connections: Connections[str], loser: Connection[str], now: float = 0.0) -> bool:
    """Let a connection lose until it is dead; return whether originals are sent elsewhere now."""
    winner = connections.of(HEDGE)
    losses = [connections.lost(loser, winner, now) for _ in range(MIN_LOSSES)]
    assert not any(losses)
    return connections.lost(loser, winner, now + MIN_SILENCE)


def methods(connections: Connections[str]) -> tuple[str, str]:
    """Return what originals and hedges are sent on."""
    return connections.of(ORIGINAL).method, connections.of(HEDGE).method


@pytest.mark.parametrize(
    ("times", "dies"),
    [
        ([0.0] * 50, False),
        ([*[0.0] * 50, JUST_BELOW], False),
        ([*[0.0] * 50, MIN_SILENCE], True),
        ([60.0 * n for n in range(MIN_LOSSES - 1)], False),
        ([*[7.0] * (MIN_LOSSES - 1), 7.0 + MIN_SILENCE], True),
        ([*[0.0] * (MIN_LOSSES - 2), MIN_SILENCE], False),
        ([0.0, *[MIN_SILENCE] * (MIN_LOSSES - 2)], False),
        ([0.0, *[MIN_SILENCE] * (MIN_LOSSES - 1)], True),
    ],
)
def test_dead_after_enough_losses_and_enough_silence(times: list[float], dies: bool) -> None:
    """C3: neither many losses in a moment nor few in a long time."""
    connection = Connection("client", own=False)
    *before, last = [connection.lost(time) for time in times]
    assert not any(before)
    assert last is dies


def test_an_answer_starts_the_count_again() -> None:
    """C3: one is enough, of an original or of a hedge that won on that connection."""
    connections = with_second()
    first, second = connections.of(ORIGINAL), connections.of(HEDGE)
    for answer in (first.answered, lambda: connections.lost(second, first, 0.0)):
        for n in range(MIN_LOSSES - 1):
            assert not connections.lost(first, second, 9.0 * n)
        answer()
        assert not connections.lost(first, second, 90.0)
        first.answered()


def test_originals_move_at_once_and_hedges_get_a_new_one() -> None:
    """C4 and C5: the client's channel is not ours to close; what it lost before is forgotten."""
    connections = with_second()
    client, second = connections.of(ORIGINAL), connections.of(HEDGE)
    for n in range(MIN_LOSSES - 1):
        second.lost(9.0 * n)
    assert kill(connections, client, 100.0)
    assert methods(connections) == ("second", "second")
    assert connections.may_open(1.0)
    assert methods(connections) == ("second", "second")
    open_one(connections, "third")
    assert methods(connections) == ("second", "third")
    assert connections.drained() == []
    assert not connections.uses(client)
    assert not connections.lost(second, connections.of(HEDGE), 200.0)


def test_a_dead_connection_moves_nothing_twice() -> None:
    """Late news of a connection that nothing is sent on any more changes nothing."""
    connections = with_second()
    dead = connections.of(ORIGINAL)
    assert kill(connections, dead)
    assert not kill(connections, dead, 10.0)
    # Nor is there another one to move to before the new one is connected.
    other = Connection("other", own=False)
    assert not any(connections.lost(connections.of(ORIGINAL), other, 1.0 * n) for n in range(10))
    assert methods(connections) == ("second", "second")


def test_an_own_connection_is_closed_when_its_last_call_has_ended() -> None:
    """C4: what is in flight, or about to be, may still be answered."""
    connections = with_second()
    kill(connections, connections.of(ORIGINAL))
    open_one(connections, "third")
    second = connections.of(ORIGINAL)
    assert second.starting == 0
    second.in_flight |= {"call", "other"}
    assert not connections.ended("call"), "it is used"
    assert kill(connections, second)
    assert connections.drained() == []
    assert connections.ended("other")
    second.starting = 1
    assert connections.drained() == []
    second.starting = 0
    assert connections.drained() == [second]
    assert connections.drained() == []
    assert not connections.ended("other")
    assert [one.method for one in connections.own] == ["third"]


def test_never_more_than_three() -> None:
    """C5: while two own ones are open, hedges use the client's, and it is tried again in time.

    A call ends on the connection that it was sent on: another one that nothing is sent on any more,
    with calls in flight, does not hide it.
    """
    connections = with_second()
    client, second = connections.of(ORIGINAL), connections.of(HEDGE)
    kill(connections, client)
    open_one(connections, "third")
    second.in_flight.add("first")
    connections.of(HEDGE).in_flight.add("last")
    kill(connections, second)
    client.lost(0.0)
    assert len(connections.own) == MAX_OWN
    assert not connections.may_open(100.0)
    assert methods(connections) == ("third", "client")
    assert connections.check_at == 100.0 + CHECK_INTERVAL
    assert client._losses == 0
    kill(connections, connections.of(ORIGINAL))
    assert methods(connections) == ("client", "client")
    assert connections.ended("last")
    assert [one.method for one in connections.drained()] == ["third"]
    assert not connections.ended("neither")
    assert connections.ended("first")
    assert [one.method for one in connections.drained()] == ["second"]


def test_where_none_can_be_opened_hedges_share_the_first() -> None:
    """C5: nothing is to be done then, now or later; nor where opening another one has failed."""
    connections = Connections("client", can_open=False)
    for _ in range(2):
        assert connections.check_at == math.inf
        assert connections.begin_check() is None
        assert not connections.may_open(0.0)
        assert methods(connections) == ("client", "client")
    connections = with_second()
    kill(connections, connections.of(ORIGINAL))
    connections.use_clients()
    assert methods(connections) == ("second", "client")


def test_an_opening_connection_is_checked_at_growing_pauses() -> None:
    """C1: by one thread, for a second in all or so; then with a batch that comes a second later."""
    connections = Connections("client", can_open=True)
    assert connections.check_at == -math.inf, "with the first batch"
    assert connections.begin_check() is Todo.OPEN
    assert connections.begin_check() is None
    connections.opened("second")
    newest = connections.newest
    assert newest is not None
    assert (newest.method, newest.own) == ("second", True)
    assert connections.uses(newest)
    assert connections.drained() == [], "it is kept for hedges"
    pauses = [FIRST_PAUSE]
    while connections.checked(is_ready=False, pause=pauses[-1], now=3.0):
        assert connections.check_at == math.inf
        pauses.append(2 * pauses[-1])
    assert pauses[-2] < MAX_PAUSE <= pauses[-1]
    assert connections.check_at == 3.0 + MAX_PAUSE
    assert methods(connections) == ("client", "client")
    assert connections.begin_check() is Todo.CONNECT
    connections.checked(is_ready=True, pause=FIRST_PAUSE, now=4.0)
    assert methods(connections) == ("client", "second")
    assert connections.of(5).method == "second"


def test_a_connection_that_is_there_is_connected_again() -> None:
    """C6: after the longest pause nobody checks for an idle publisher; hedges wait for it."""
    connections = with_second()
    assert connections.check_at == CHECK_INTERVAL
    assert connections.begin_check() is Todo.CONNECT
    assert connections.begin_check() is None
    assert connections.checked(is_ready=False, pause=MAX_PAUSE / 1.01, now=50.0)
    assert not connections.checked(is_ready=False, pause=MAX_PAUSE, now=50.0)
    assert methods(connections) == ("client", "second")


def test_close_takes_out_all_own_connections() -> None:
    """Each is closed once, in use or not; one that is opened too late is closed at once.

    Whatever is sent all the same, after ``stop()``, goes where it can be sent.
    """
    connections = with_second()
    kill(connections, connections.of(ORIGINAL))
    connections.opened("third")
    assert [one.method for one in connections.close()] == ["second", "third"]
    assert connections.close() == connections.drained() == []
    assert connections.newest is None
    assert methods(connections) == ("client", "client")
    late = Connections("client", can_open=True)
    assert late.close() == []
    assert not late.opened("second")
    assert (late.own, late.opening) == ([], None)
    assert not late.may_open(0.0)


@given(st.lists(st.sampled_from(["dead", "opened", "connected", "call", "ended"]), max_size=60))
def test_whatever_happens(steps: list[str]) -> None:
    """Never more than two own connections, and none that is used is closed."""
    connections = with_second()
    wanted = False
    calls: list[int] = []
    for number, step in enumerate(steps):
        if step == "dead":
            wanted = kill(connections, connections.of(ORIGINAL), 9.0 * number) or wanted
        elif step == "opened" and wanted:
            wanted = False
            if connections.may_open(0.0):
                assert connections.opened(f"connection {number}")
        elif step == "connected":
            connections.checked(is_ready=True, pause=FIRST_PAUSE, now=0.0)
        elif step == "call":
            calls.append(number)
            connections.of(number % 2).in_flight.add(number)
        elif step == "ended" and calls:
            connections.ended(calls.pop())
        for closed in connections.drained():
            assert closed.own
            assert not connections.uses(closed)
            assert not closed.in_flight
        assert len(connections.own) <= MAX_OWN
        for attempt in (ORIGINAL, HEDGE):
            used = connections.of(attempt)
            assert not used.own or used in connections.own


@pytest.mark.parametrize(
    ("latency", "batches", "alarms"),
    [([0.005] * 9 + [2.0], 2_000, 0), ([0.3, 0.35, 0.4], 2_000, 0), ([0.005, 2.0], 5_000, 5)],
    ids=["a tenth stalls", "all is slow", "half stalls"],
)
def test_a_slow_service_is_no_dead_connection(
    latency: list[float], batches: int, alarms: int
) -> None:
    """C3: hedges are as slow as originals, most of which win; one batch at a time."""
    draw, connection = random.Random(1), Connection("client", own=False)
    false: list[float] = []

    def answer(_: int, start: Start) -> tuple[float, Event]:
        return draw.choice(latency), Succeeded(start.attempt)

    def note(_: int, order: Order, now: float) -> None:
        if order == Resolve(ORIGINAL):
            connection.answered()
        elif isinstance(order, Resolve) and connection.lost(now):
            false.append(now)
            connection.answered()

    commits = ((3.0 * number, core_batch()) for number in range(batches))
    run(Runs(HedgingSettings(hedge_delay=0.1)), commits, answer, note)
    assert len(false) <= alarms
