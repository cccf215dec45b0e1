"""The rules of one batch, R1 to R12, through the real gRPC server, for both kinds of publisher."""

from __future__ import annotations

import base64
import concurrent.futures
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.retry import AsyncRetry, Retry, if_exception_type
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1 import PublisherAsyncClient, PubsubMessage

from hedged_pubsub import HedgingSettings
from hedged_pubsub._google.method import TELEMETRY_HEADER, encode_telemetry
from hedged_pubsub.testing import (
    Attempt,
    DropReply,
    Fault,
    FaultScript,
    Fixed,
    PubSubServer,
    Stall,
    Status,
    StoreThenStall,
)

from .aio.publishers import run
from .conftest import FAST, ONE_MESSAGE, TOPIC, Make, New, both_kinds, settled, wait_until

UNAVAILABLE = if_exception_type(exceptions.ServiceUnavailable)

OPEN = BatchSettings(max_messages=10, max_latency=30)
"""A batch that is open until it is flushed."""


def assert_not_early(seconds: float, since: float, until: float | None = None) -> None:
    """Fail if less time has passed; how late something is, is the machine's business."""
    assert (time.monotonic() if until is None else until) - since >= seconds - 0.02


def numbers(attempts: tuple[Attempt, ...]) -> list[int | None]:
    """Return the attempt numbers in order of arrival."""
    return [attempt.attempt_number for attempt in attempts]


def outcomes(server: PubSubServer) -> list[str]:
    """Return what became of the attempts in order of arrival, once that is known of each."""
    wait_until(settled(server))
    return [attempt.outcome for attempt in server.attempts()]


def stall_originals(seconds: float = 30.0) -> FaultScript:
    """Hold every original; hedges are answered at once."""
    return FaultScript(faults=[Stall(seconds, attempts=[0])])


@dataclass(frozen=True)
class Case:
    """What the service does to the original and its hedge, and what comes of it."""

    faults: list[Fault]
    outcomes: list[str]
    error: type[Exception] | None = None  # of the batch
    arguments: dict[str, Any] = field(default_factory=dict)  # of ``publish()``


ORIGINAL: dict[str, Any] = {"attempts": [0]}
HEDGE: dict[str, Any] = {"attempts": [1]}
CASES = {
    "R1: what is answered is one request": Case([], ["answered"], arguments={"timeout": 7.0}),
    "R4: a hedge that is first decides": Case([Stall(30, **ORIGINAL)], ["cancelled", "answered"]),
    "R4: the original can win over its hedge": Case(
        [Stall(0.5, **ORIGINAL), Stall(30, **HEDGE)], ["answered", "cancelled"]
    ),
    "R4: two successes are one result": Case([DropReply(**ORIGINAL)], ["dropped", "answered"]),
    "R6: a permanent error fails at once": Case(
        [Stall(30, **HEDGE), Status("PERMISSION_DENIED", after=0.4)],
        ["failed", "cancelled"],
        exceptions.PermissionDenied,
    ),
    "R6: without a retry left the hedge is waited for": Case(
        [Status("UNAVAILABLE", after=0.4, **ORIGINAL), Stall(0.5, **HEDGE)],
        ["failed", "answered"],
        arguments={"retry": None},
    ),
    "R6: the error is the original's": Case(
        [
            Status("UNAVAILABLE", after=0.4, **ORIGINAL),
            Status("PERMISSION_DENIED", after=0.4, **HEDGE),
        ],
        ["failed", "failed"],
        exceptions.ServiceUnavailable,
        {"retry": None},
    ),
}


@both_kinds
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_r4_to_r6_who_decides(server: PubSubServer, make: Make, case: Case) -> None:
    """The first success, or the original's error; every other attempt is cancelled."""
    publisher = make(tokens=1, script=FaultScript(faults=case.faults))
    before = publisher.hedging_stats()
    calls: list[Any] = []
    future = publisher.publish(TOPIC, b"data", **case.arguments)
    future.add_done_callback(calls.append)
    error = future.exception(timeout=5)
    assert type(error) is (case.error or type(None))
    assert outcomes(server) == case.outcomes
    wait_until(lambda: calls)
    assert calls == [future]

    attempts = server.attempts()
    assert numbers(attempts) == [0, 1][: len(attempts)]
    assert attempts[0].timeout == pytest.approx(case.arguments.get("timeout", 60), abs=0.5)
    winner = None
    if error is None:
        (stored,) = (m for m in server.messages() if m.message_id == future.result())
        winner = stored.attempt_number
        assert attempts[winner or 0].outcome == "answered"
    stats = publisher.hedging_stats()
    hedges = len(attempts) - 1
    assert stats.hedges_sent - before.hedges_sent == hedges
    assert stats.hedges_won - before.hedges_won == (winner == 1)
    # One refill for a batch that is stored.
    assert stats.tokens == pytest.approx(1 - hedges + 0.1 * (error is None))


@both_kinds
@pytest.mark.parametrize(("code", "times"), [("UNAVAILABLE", 2), ("CANCELLED", 1)])
def test_r6_a_transient_error_is_retried_in_the_same_batch(
    server: PubSubServer, make: Make, code: str, times: int
) -> None:
    """The default retry policy resends the original, as officially.

    R7: also after a ``CANCELLED`` that comes from the service.
    """
    # Without a token: a wait can be longer than the hedge delay.
    publisher = make(script=FaultScript(faults=[Status(code, times=times)]))
    publisher.publish(TOPIC, b"data").result(timeout=5)
    attempts = server.attempts()
    assert numbers(attempts) == [0] * (times + 1)
    assert publisher.hedging_stats().batches == 1
    assert len({attempt.publish_start_time for attempt in attempts}) == 1


@both_kinds
def test_r2_hedges_go_out_one_delay_apart(server: PubSubServer, make: Make) -> None:
    """With nothing answered, a hedge leaves at each delay and they are numbered."""
    publisher = make(tokens=3, script=FaultScript(faults=[Stall(30, attempts=[0, 1, 2])]))
    called = time.monotonic()
    publisher.publish(TOPIC, b"data").result(timeout=5)
    attempts = server.attempts()
    assert numbers(attempts) == [0, 1, 2, 3]
    for number, attempt in enumerate(attempts):
        assert_not_early(number * 0.1, called, attempt.arrival)


@both_kinds
def test_r3_a_hedge_has_ten_seconds_or_what_is_left(server: PubSubServer, make: Make) -> None:
    """The server sees the hedge's timeout: ten seconds, or less where less is left."""
    publisher = make(tokens=2, script=stall_originals())
    publisher.publish(TOPIC, b"data").result(timeout=5)
    publisher.publish(TOPIC, b"data", timeout=2.0, retry=None).result(timeout=5)
    first, second = (a.timeout or 0 for a in server.attempts() if a.attempt_number == 1)
    assert first == pytest.approx(10, abs=0.3)
    assert 0 < second < 1.95


@both_kinds
def test_r5_a_failed_hedge_fails_nothing(server: PubSubServer, make: Make) -> None:
    """Whatever a hedge fails with, the original's answer is the result."""
    codes = ["PERMISSION_DENIED", "NOT_FOUND", "UNAVAILABLE", "CANCELLED"]
    refuse = [Status(code, times=1) for code in codes]
    script = FaultScript(faults=[Stall(0.5, attempts=[0]), *refuse])
    publisher = make(tokens=4, script=script)
    for future in [publisher.publish(TOPIC, b"data") for _ in codes]:
        future.result(timeout=5)
    assert sorted(outcomes(server)) == ["answered"] * 4 + ["failed"] * 4
    assert {attempt.code for attempt in server.attempts() if attempt.attempt_number} == {*codes}


@both_kinds
def test_r6_past_the_retry_timeout_it_is_the_official_retry_error(
    server: PubSubServer, make: Make
) -> None:
    """``RetryError`` with the last error as its cause, and no wait beyond the timeout."""
    publisher = make(script=FaultScript(faults=[Status("UNAVAILABLE")]))
    retry = Retry(UNAVAILABLE, initial=0.01, maximum=0.02, timeout=1.0)
    called = time.monotonic()
    error = publisher.publish(TOPIC, b"data", retry=retry).exception(timeout=5)
    assert isinstance(error, exceptions.RetryError)
    assert isinstance(error.cause, exceptions.ServiceUnavailable)
    assert error.__cause__ is error.cause
    assert_not_early(0.9, called)
    assert len(server.attempts()) > 5


@both_kinds
def test_r7_the_predicate_never_sees_our_own_cancel(server: PubSubServer, make: Make) -> None:
    """The default predicate retries ``Cancelled``: a cancelled loser must not be sent again."""
    seen: list[Exception] = []

    def predicate(error: Exception) -> bool:
        seen.append(error)
        return True

    publisher = make(tokens=1, script=stall_originals())
    publisher.publish(TOPIC, b"data", retry=Retry(predicate)).result(timeout=5)
    assert outcomes(server) == ["cancelled", "answered"]
    time.sleep(0.15)  # longer than the first backoff
    assert seen == []
    assert numbers(server.attempts()) == [0, 1]


@both_kinds
@pytest.mark.parametrize("place", ["predicate", "on_error"])
def test_r8_a_users_code_that_raises(make: Make, place: str) -> None:
    """A predicate or ``on_error`` that raises ends the batch with that; publishing goes on."""

    def boom(error: Exception) -> bool:
        raise ZeroDivisionError(place)

    retry = Retry(boom) if place == "predicate" else Retry(lambda _: True, on_error=boom)
    publisher = make(tokens=1, script=FaultScript(faults=[Status("UNAVAILABLE", times=1)]))
    future = publisher.publish(TOPIC, b"data", retry=retry)
    assert isinstance(future.exception(timeout=5), ZeroDivisionError)
    publisher.publish(TOPIC, b"data").result(timeout=5)


@both_kinds
def test_r10_every_attempt_carries_the_same(server: PubSubServer, make: Make) -> None:
    """Each has the body, and the telemetry header with its number and the start time.

    That is when the oldest message was published, however long it waits in its batch.
    """
    script = FaultScript(faults=[StoreThenStall(30, attempts=[0])])
    publisher = make(tokens=1, script=script, batch_settings=OPEN)
    before = time.time()
    first = publisher.publish(TOPIC, b"data", colour="blue")
    after = time.time()
    time.sleep(0.05)
    publisher.publish(TOPIC, b"later")
    publisher.flush(timeout=5)
    first.result(timeout=5)

    attempts = server.attempts()
    assert [(one.attempt_number, one.message_count) for one in attempts] == [(0, 2), (1, 2)]
    for attempt in attempts:
        value = base64.b64decode(str(dict(attempt.metadata)[TELEMETRY_HEADER]))
        assert value == base64.b64decode(
            encode_telemetry(attempt.attempt_number or 0, attempt.publish_start_time)
        )
        assert attempt.publish_start_time is not None
        assert before - 0.001 <= attempt.publish_start_time <= after
    assert len({attempt.publish_start_time for attempt in attempts}) == 1
    expected = [(b"data", (("colour", "blue"),)), (b"later", ())]
    assert [(one.data, one.attributes) for one in server.messages()] == expected * 2


@both_kinds
def test_r10_the_metadata_is_the_official_clients(
    server: PubSubServer, make: Make, kind: str
) -> None:
    """Header by header the same as the official client's of that kind, but for telemetry."""

    async def publish_officially() -> None:
        async with PublisherAsyncClient() as official:
            await official.publish(topic=TOPIC, messages=[PubsubMessage(data=b"data")])

    make().publish(TOPIC, b"data").result(timeout=5)
    if kind == "sync":
        with pubsub_v1.PublisherClient(ONE_MESSAGE) as official:
            official.publish(TOPIC, b"data").result(timeout=5)
    else:
        run(publish_officially)
    ours, theirs = (dict(attempt.metadata) for attempt in server.attempts())
    assert ours.pop(TELEMETRY_HEADER)
    assert ours == theirs
    assert ours["x-goog-request-params"] == "topic=projects/test/topics/orders"
    assert kind == "asyncio" or "gccl/" in str(ours["x-goog-api-client"])


def test_r11_stop_flushes_and_hedging_goes_on(server: PubSubServer, make: Make) -> None:
    """``stop()`` returns at once; the batch it sent is hedged until it is decided."""
    publisher = make(tokens=1, batch_settings=OPEN, script=stall_originals())
    earned = publisher.hedging_stats().batches
    future = publisher.publish(TOPIC, b"data")
    publisher.stop()
    assert not future.done()
    future.result(timeout=5)
    assert numbers(server.attempts()) == [0, 1]
    assert publisher.hedging_stats().batches == earned + 1
    with pytest.raises(RuntimeError, match="stopped"):
        publisher.publish(TOPIC, b"late")
    with pytest.raises(RuntimeError, match="stopped"):
        publisher.stop()


@both_kinds
@pytest.mark.usefixtures("server")
def test_r12_ordering(new_publisher: New, kind: str) -> None:
    """Ordering and hedging exclude each other; on asyncio there is no ordering at all."""
    options = PublisherOptions(enable_message_ordering=True)
    with pytest.raises(ValueError, match="enable_message_ordering=True and hedging exclude"):
        new_publisher(publisher_options=options)
    if kind == "sync":
        new_publisher(publisher_options=options, hedging_settings=None).close()
        return
    with pytest.raises(ValueError, match="enable_message_ordering=True and hedging exclude"):
        new_publisher(publisher_options=options, hedging_settings=None)
    with new_publisher() as publisher:
        with pytest.raises(ValueError, match="leave it out, or use a HedgedPublisher"):
            publisher.publish(TOPIC, b"data", ordering_key="key")
        assert publisher.hedging_stats().batches == 0


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timeout": 1.0}, ValueError, r"hedge_delay \(1 s\) .* request \(1 s\)"),
    ({"timeout": 0.5}, ValueError, r"hedge_delay \(1 s\) .* request \(0\.5 s\)"),
    ({"timeout": float("nan")}, ValueError, "nan"),
    ({"timeout": "1"}, TypeError, "^timeout must be"),
    ({"timeout": True}, TypeError, "^timeout must be"),
    ({"retry": Retry(timeout=1.0)}, ValueError, r"hedge_delay \(1 s\) .* timeout \(1 s\)"),
    ({"retry": Retry(timeout=0.5)}, ValueError, r"hedge_delay \(1 s\) .* timeout \(0\.5 s\)"),
    ({"retry": "often"}, TypeError, "^retry must be"),
    ({"retry": 3}, TypeError, "^retry must be"),
]
BELOW = {"retry": AsyncRetry(timeout=0.5)}, ValueError, r"hedge_delay .* timeout \(0\.5 s\)"


@pytest.mark.parametrize(
    ("kind", "arguments", "error_type", "named"),
    [*(("sync", *row) for row in REFUSED), *(("asyncio", *row) for row in [*REFUSED, BELOW])],
)
@pytest.mark.usefixtures("server")
def test_r12_times_and_types(
    new_publisher: New, arguments: dict[str, Any], error_type: type[Exception], named: str
) -> None:
    """What is not strictly above the delay, or of another type, is refused.

    In the options the publisher is not made; of a call nothing is accepted.
    """
    with pytest.raises(error_type, match=named):
        new_publisher(publisher_options=PublisherOptions(**arguments))
    with new_publisher() as publisher:
        with pytest.raises(error_type, match=named):
            publisher.publish(TOPIC, b"data", **arguments)
        assert publisher.hedging_stats().batches == 0


@both_kinds
@pytest.mark.usefixtures("server")
def test_r12_no_timeout_is_infinite(new_publisher: New) -> None:
    """Without a timeout every delay is below it."""
    options = PublisherOptions(retry=Retry(timeout=None), timeout=None)
    with new_publisher((), options, hedging_settings=HedgingSettings(10)) as publisher:
        assert publisher.hedging_settings == HedgingSettings(10)


@both_kinds
@pytest.mark.usefixtures("server")
def test_r12_transports_without_cancellable_calls(new_publisher: New, kind: str) -> None:
    """REST and the other kind's transports are refused, with what to do instead."""
    other, use = ("grpc_asyncio", "grpc") if kind == "sync" else ("grpc", "grpc_asyncio")
    for transport in ("rest", other):
        with pytest.raises(ValueError, match=f"transport='{transport}' .* use '{use}'"):
            new_publisher(transport=transport)
    if kind == "sync":
        rest = pubsub_v1.PublisherClient.get_transport_class("rest")
        with pytest.raises(ValueError, match="has no gRPC calls that can be cancelled"):
            new_publisher(transport=rest)


@both_kinds
def test_answers_and_hedges_that_meet(server: PubSubServer, make: Make) -> None:
    """Three hundred answers come as their hedges leave: one result each, and the budget holds."""
    settings = HedgingSettings(0.1, refill_ratio=0.2)
    publisher = make(tokens=25, hedging_settings=settings)
    before = publisher.hedging_stats()
    server.set_script(FaultScript(latency=Fixed(0.1)))
    futures = [publisher.publish(TOPIC, b"%d" % number) for number in range(300)]
    done, pending = concurrent.futures.wait(futures, timeout=20)
    assert not pending
    assert len({future.result() for future in done}) == 300
    stats = publisher.hedging_stats()
    assert stats.batches == before.batches + 300
    assert stats.hedges_won <= stats.hedges_sent <= stats.batches * 0.2
    # A hedge that is cancelled while it leaves need not reach the server.
    assert 300 <= len(server.attempts()) <= stats.attempts - before.attempts


def test_a_publisher_that_was_never_used_started_no_thread(make: Make) -> None:
    """The library's threads start with the first message."""
    before = set(threading.enumerate())
    assert make().hedging_settings == FAST
    assert set(threading.enumerate()) <= before
