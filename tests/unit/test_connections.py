"""Which connection an attempt travels on, and when one is dead (C1-C5)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from hedged_pubsub.connections import MAX_OWN, MIN_LOSSES, MIN_SILENCE, Connection, Connections
from hedged_pubsub.engine import AttemptEngine
from hedged_pubsub.events import Committed, Resolve, Start, Succeeded, Woke
from hedged_pubsub.token_bucket import TokenBucket

ORIGINAL, HEDGE = 0, 1


def overtake(connection: Connection[str], times: list[float]) -> list[bool]:
    """Let batches overtake a connection."""
    return [connection.overtaken(time) for time in times]


def with_second() -> Connections[str]:
    """Make connections of which the second is open."""
    connections = Connections("client")
    open_one(connections, "second")
    return connections


def open_one(connections: Connections[str], method: str) -> None:
    """Open a connection, and connect it."""
    connections.open(method)
    connections.connected()


def methods(connections: Connections[str]) -> tuple[str, str]:
    """Return what originals and hedges travel on."""
    return connections.of(ORIGINAL).method, connections.of(HEDGE).method


def test_hedges_travel_alone_once_there_is_a_second_connection() -> None:
    """C1: until then they share the client's channel."""
    connections = Connections("client")
    assert methods(connections) == ("client", "client")
    connections.open("second")
    assert methods(connections) == ("client", "client")
    assert connections.drained() == []
    connections.connected()
    assert methods(connections) == ("client", "second")
    assert connections.of(5).method == "second"


def test_dead_after_enough_losses_and_enough_silence() -> None:
    """C3: neither many losses in a moment nor few in a long time."""
    connection = Connection("client", own=False)
    assert not any(overtake(connection, [0.0] * 50))
    connection = Connection("client", own=False)
    assert not any(overtake(connection, [60.0 * n for n in range(MIN_LOSSES - 1)]))
    connection = Connection("client", own=False)
    step = MIN_SILENCE / (MIN_LOSSES - 1)
    assert overtake(connection, [step * n for n in range(MIN_LOSSES)]) == [
        *[False] * (MIN_LOSSES - 1),
        True,
    ]


def test_a_sign_of_life_starts_the_count_anew() -> None:
    """C3: one answer is enough."""
    connection = Connection("client", own=False)
    assert not any(overtake(connection, [1.0 * n for n in range(MIN_LOSSES - 1)]))
    connection.heard()
    assert not any(overtake(connection, [9.0 + n for n in range(MIN_LOSSES - 1)]))


def test_originals_move_at_once_and_hedges_get_a_new_one() -> None:
    """C4 and C5: the client's channel is not ours to close."""
    connections = with_second()
    assert connections.give_way(connections.of(ORIGINAL))
    assert methods(connections) == ("second", "second")
    assert connections.may_open
    open_one(connections, "third")
    assert methods(connections) == ("second", "third")
    assert connections.drained() == []


def test_a_dead_connection_moves_nothing_twice() -> None:
    """Late news of a connection that nothing is sent on any more changes nothing."""
    connections = with_second()
    dead = connections.of(ORIGINAL)
    assert connections.give_way(dead)
    assert not connections.give_way(dead)
    # Nor is there anywhere to move to before the new one is open.
    assert not connections.give_way(connections.of(ORIGINAL))


def test_an_own_connection_is_closed_when_its_last_call_has_ended() -> None:
    """C4: what is in flight may still be answered."""
    connections = with_second()
    connections.give_way(connections.of(ORIGINAL))
    open_one(connections, "third")
    second = connections.of(ORIGINAL)
    second.in_flight.add("call")
    assert connections.give_way(second)
    assert connections.drained() == []
    second.in_flight.clear()
    second.starting = 1
    assert connections.drained() == []
    second.starting = 0
    assert connections.drained() == [second]
    assert connections.drained() == []


def test_never_more_than_three() -> None:
    """C5: while two own ones are open, hedges use the client's channel."""
    connections = with_second()
    connections.give_way(connections.of(ORIGINAL))
    open_one(connections, "third")
    connections.of(ORIGINAL).in_flight.add("call")
    connections.give_way(connections.of(ORIGINAL))
    assert not connections.may_open
    connections.fall_back()
    assert methods(connections) == ("third", "client")


@given(st.lists(st.sampled_from(["dead", "opened", "call", "ended"]), max_size=60))
def test_whatever_happens(steps: list[str]) -> None:
    """Never more than two own connections, and none that is used is closed."""
    connections = with_second()
    pending = False
    calls: list[Connection[str]] = []
    for number, step in enumerate(steps):
        if step == "dead":
            pending = connections.give_way(connections.of(ORIGINAL)) or pending
        elif step == "opened" and pending:
            pending = False
            if connections.may_open:
                open_one(connections, f"connection {number}")
            else:
                connections.fall_back()
        elif step == "call":
            calls.append(connections.of(number % 2))
            calls[-1].in_flight.add(number)
        elif step == "ended" and calls:
            calls.pop().in_flight.pop()
        for closed in connections.drained():
            assert closed.own
            assert not connections.uses(closed)
            assert not closed.in_flight
        assert len(connections.own) <= MAX_OWN
        for attempt in (ORIGINAL, HEDGE):
            used = connections.of(attempt)
            assert not used.own or used in connections.own


def false_alarms(draw: random.Random, latency: list[float], batches: int) -> int:
    """Send batches in turn over two healthy connections of a slow service; count alarms."""
    connection = Connection("client", own=False)
    bucket = TokenBucket(50, 0.1)
    now, alarms = 0.0, 0
    for _ in range(batches):
        engine = AttemptEngine(hedge_delay=0.1, bucket=bucket, total_timeout=600)
        answers: dict[int, float] = {}
        commands = engine.handle(Committed(), now)
        while not engine.decided:
            for command in commands:
                if isinstance(command, Start):
                    answers[command.attempt] = now + draw.choice(latency)
            attempt = min(answers, key=lambda one: answers[one])
            wakeup = engine.next_wakeup
            if wakeup is not None and wakeup < answers[attempt]:
                now = wakeup
                commands = engine.handle(Woke(), now)
            else:
                now = answers.pop(attempt)
                commands = engine.handle(Succeeded(attempt), now)
        winner = next(command.attempt for command in commands if isinstance(command, Resolve))
        if winner == ORIGINAL:
            connection.heard()
        elif connection.overtaken(now):
            alarms += 1
            connection.heard()
    return alarms


def test_a_slow_service_is_no_dead_connection() -> None:
    """C3: not when a tenth stalls, not when all is slow, not when half is; one batch at a time."""
    draw = random.Random(1)
    assert false_alarms(draw, [0.005] * 9 + [2.0], 10_000) == 0
    assert false_alarms(draw, [0.3, 0.35, 0.4], 10_000) == 0
    assert false_alarms(draw, [0.005, 2.0], 5_000) <= 5
