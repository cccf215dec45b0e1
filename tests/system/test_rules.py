"""The rules of one batch through the real gRPC server: R1 to R12."""

from __future__ import annotations

import base64
import concurrent.futures
import logging
import random
import threading
import time
from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher.exceptions import PublishError

from hedged_pubsub import HedgedPublisher, HedgingSettings, telemetry
from hedged_pubsub.testing import (
    Attempt,
    DropReply,
    FaultScript,
    Fixed,
    PubSubServer,
    Stall,
    Status,
    StoreThenStall,
    TooFewIds,
)

from .conftest import FAST, ONE_MESSAGE, MakePublisher, wait_until

_SLACK = 0.5
"""Seconds that a busy machine may add to what a test times: things may be late, never early."""


def assert_took(seconds: float, since: float, until: float | None = None) -> None:
    """Fail if something that takes so many seconds came early or much too late."""
    elapsed = (time.monotonic() if until is None else until) - since
    assert seconds - 0.02 <= elapsed < seconds + _SLACK


def numbers(attempts: tuple[Attempt, ...]) -> list[int | None]:
    """Return the attempt numbers in order of arrival."""
    return [attempt.attempt_number for attempt in attempts]


def stall_originals(seconds: float = 30.0) -> FaultScript:
    """Hold every original; hedges are answered at once."""
    return FaultScript(faults=[Stall(seconds, attempts=[0])])


def test_r1_the_original_goes_out_at_once_with_the_callers_timeout(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A publish that is answered is one request, with the timeout of the call."""
    publisher = make_publisher()
    called = time.monotonic()
    publisher.publish(topic, b"data", timeout=7.0).result(timeout=5)
    (attempt,) = server.attempts()
    assert attempt.arrival - called < _SLACK
    assert attempt.timeout == pytest.approx(7.0, abs=0.5)
    assert attempt.attempt_number == 0
    assert publisher.hedging_stats().hedges_sent == 0


def test_r2_hedges_go_out_one_delay_apart(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """With nothing answered, a hedge leaves at each delay and they are numbered."""
    publisher = make_publisher(tokens=5)
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0, 1, 2])]))
    called = time.monotonic()
    publisher.publish(topic, b"data").result(timeout=5)
    assert_took(0.3, called)
    attempts = server.attempts()
    assert numbers(attempts) == [0, 1, 2, 3]
    for number, attempt in enumerate(attempts):
        assert_took(number * 0.1, called, attempt.arrival)


def test_r3_no_hedge_while_the_original_backs_off(
    server: PubSubServer, topic: str, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with nothing in flight is not hedged, and pays no token."""
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)  # a backoff without jitter
    publisher = make_publisher()
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=1)]))
    retry = Retry(if_exception_type(exceptions.ServiceUnavailable), initial=0.35, timeout=10)
    called = time.monotonic()
    publisher.publish(topic, b"data", retry=retry).result(timeout=5)
    assert_took(0.35, called)
    assert numbers(server.attempts()) == [0, 0]
    assert publisher.hedging_stats().tokens == pytest.approx(3.1)


def test_r3_a_hedge_has_ten_seconds_or_what_is_left(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The server sees the hedge's timeout: ten seconds, or less where less is left."""
    publisher = make_publisher()
    server.set_script(stall_originals())
    publisher.publish(topic, b"data").result(timeout=5)
    publisher.publish(topic, b"data", timeout=2.0, retry=None).result(timeout=5)
    first, second = (attempt for attempt in server.attempts() if attempt.attempt_number == 1)
    assert first.timeout == pytest.approx(10, abs=0.3)
    assert second.timeout == pytest.approx(1.9, abs=0.3)


def test_r3_without_a_token_the_hedge_is_suppressed_and_sent_later(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A batch that found the bucket empty is hedged once others have earned a token."""
    publisher = make_publisher(tokens=0, hedging_settings=HedgingSettings(0.1, refill_ratio=0.2))
    server.set_script(FaultScript(faults=[Stall(30, calls=[1])]))
    stalled = publisher.publish(topic, b"stalled")
    wait_until(lambda: publisher.hedging_stats().hedges_suppressed == 2)
    assert numbers(server.attempts()) == [0]
    for _ in range(5):
        publisher.publish(topic, b"data").result(timeout=5)
    stalled.result(timeout=1)
    assert publisher.hedging_stats().hedges_sent == 1


def test_r3_hedging_ends_with_the_total_timeout(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Past the caller's time no hedge goes out, and the batch ends with the original."""
    publisher = make_publisher(tokens=5)
    server.set_script(FaultScript(faults=[DropReply()]))
    called = time.monotonic()
    future = publisher.publish(topic, b"data", timeout=0.35, retry=None)
    assert isinstance(future.exception(timeout=5), exceptions.DeadlineExceeded)
    assert_took(0.35, called)
    sent = server.attempts()
    assert numbers(sent) in ([0, 1, 2, 3], [0, 1, 2])  # a late look moves the next ones
    time.sleep(0.25)  # two more looks, if there were any
    assert len(server.attempts()) == len(sent)


def test_r4_the_first_success_decides_and_cancels_the_rest(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The hedge's id is the result, the original is cancelled, and one refill is earned."""
    publisher = make_publisher()
    server.set_script(stall_originals())
    message_id = publisher.publish(topic, b"data").result(timeout=5)
    wait_until(lambda: all(attempt.outcome != "pending" for attempt in server.attempts()))
    original, hedge = server.attempts()
    assert (original.outcome, hedge.outcome) == ("cancelled", "answered")
    (stored,) = server.messages()
    assert (stored.message_id, stored.attempt_number) == (message_id, 1)
    stats = publisher.hedging_stats()
    assert (stats.hedges_sent, stats.hedges_won, stats.attempts_cancelled) == (1, 1, 1)
    assert stats.tokens == pytest.approx(2.1)


def test_r4_the_original_can_win_over_its_hedge(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """An original that is slow but faster than its hedge is the result."""
    publisher = make_publisher()
    server.set_script(FaultScript(faults=[Stall(0.2, attempts=[0]), Stall(30, attempts=[1, 2])]))
    publisher.publish(topic, b"data").result(timeout=5)
    stats = publisher.hedging_stats()
    assert stats.hedges_sent >= 1
    assert stats.hedges_won == 0
    wait_until(lambda: all(attempt.outcome != "pending" for attempt in server.attempts()))
    assert [attempt.outcome for attempt in server.attempts()][:2] == ["answered", "cancelled"]


def test_r4_two_successes_are_one_result(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A reply that was lost after storing leaves a duplicate on the server, and one outcome."""
    publisher = make_publisher()
    server.set_script(FaultScript(faults=[DropReply(attempts=[0])]))
    calls: list[str] = []
    future = publisher.publish(topic, b"data")
    future.add_done_callback(lambda done: calls.append(done.result()))
    future.result(timeout=5)
    publisher.flush()
    wait_until(lambda: len(calls) == 1)
    assert len(server.messages()) == 2
    assert len({message.message_id for message in server.messages()}) == 2


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "NOT_FOUND", "UNAVAILABLE", "CANCELLED"])
def test_r5_a_failed_hedge_fails_nothing(
    server: PubSubServer, topic: str, make_publisher: MakePublisher, code: str
) -> None:
    """Whatever a hedge fails with, the original's answer is the result."""
    publisher = make_publisher()
    server.set_script(FaultScript(faults=[Stall(0.25, attempts=[0]), Status(code)]))
    publisher.publish(topic, b"data").result(timeout=5)
    attempts = server.attempts()
    assert numbers(attempts)[:2] == [0, 1]
    assert attempts[0].outcome == "answered"
    assert attempts[1].outcome == "failed"


def test_r6_a_permanent_error_fails_at_once_and_cancels_hedges(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The error of the original ends the batch, of the type the official client raises."""
    publisher = make_publisher(tokens=1)
    server.set_script(
        FaultScript(
            faults=[Stall(30, attempts=[1]), Status("PERMISSION_DENIED", after=0.4)],
        )
    )
    future = publisher.publish(topic, b"data")
    assert isinstance(future.exception(timeout=5), exceptions.PermissionDenied)
    wait_until(lambda: all(attempt.outcome != "pending" for attempt in server.attempts()))
    assert [attempt.outcome for attempt in server.attempts()] == ["failed", "cancelled"]
    assert publisher.hedging_stats().tokens == 0


def test_r6_a_transient_error_is_retried_in_the_same_batch(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The default retry policy resends the original, as officially."""
    publisher = make_publisher(tokens=0)  # a wait can be longer than the hedge delay
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=2)]))
    publisher.publish(topic, b"data").result(timeout=5)
    attempts = server.attempts()
    assert numbers(attempts) == [0, 0, 0]
    assert publisher.hedging_stats().batches == 1
    assert len({attempt.publish_start_time for attempt in attempts}) == 1


def test_r6_no_retry_left_but_a_hedge_in_flight(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The hedge that is about to be stored is waited for, and its id is the result."""
    publisher = make_publisher(tokens=1)
    server.set_script(
        FaultScript(
            faults=[Status("UNAVAILABLE", attempts=[0], after=0.4), Stall(0.8, attempts=[1])],
        )
    )
    publisher.publish(topic, b"data", retry=None).result(timeout=5)
    assert [attempt.outcome for attempt in server.attempts()] == ["failed", "answered"]


def test_r6_no_retry_left_and_the_hedge_fails_too(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The error is the original's, not the hedge's."""
    publisher = make_publisher(tokens=1)
    server.set_script(
        FaultScript(
            faults=[
                Status("UNAVAILABLE", attempts=[0], after=0.4),
                Status("PERMISSION_DENIED", after=0.4),
            ],
        )
    )
    future = publisher.publish(topic, b"data", retry=None)
    assert isinstance(future.exception(timeout=5), exceptions.ServiceUnavailable)
    assert numbers(server.attempts()) == [0, 1]


def test_r6_past_the_retry_timeout_it_is_the_official_retry_error(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """``RetryError`` with the last error as its cause, and no wait beyond the timeout."""
    publisher = make_publisher(tokens=0)
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE")]))
    retry = Retry(
        if_exception_type(exceptions.ServiceUnavailable), initial=0.01, maximum=0.05, timeout=0.4
    )
    called = time.monotonic()
    error = publisher.publish(topic, b"data", retry=retry).exception(timeout=5)
    assert isinstance(error, exceptions.RetryError)
    assert isinstance(error.cause, exceptions.ServiceUnavailable)
    assert error.__cause__ is error.cause
    assert_took(0.2, called)
    assert len(server.attempts()) > 5


def test_r7_the_predicate_never_sees_our_own_cancel(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The default predicate retries ``Cancelled``: a cancelled loser must not be sent again."""
    seen: list[Exception] = []

    def predicate(error: Exception) -> bool:
        seen.append(error)
        return True

    publisher = make_publisher()
    server.set_script(stall_originals())
    publisher.publish(topic, b"data", retry=Retry(predicate)).result(timeout=5)
    time.sleep(0.3)
    assert seen == []
    assert numbers(server.attempts()) == [0, 1]


def test_r7_a_cancel_by_the_server_is_retried(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """``CANCELLED`` that comes from the service is an error like any other."""
    publisher = make_publisher(tokens=0)  # a wait can be longer than the hedge delay
    server.set_script(FaultScript(faults=[Status("CANCELLED", times=1)]))
    publisher.publish(topic, b"data").result(timeout=5)
    assert numbers(server.attempts()) == [0, 0]


def test_r8_too_few_ids(
    server: PubSubServer,
    topic: str,
    make_publisher: MakePublisher,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An answer with too few message ids fails the batch, as officially."""
    publisher = make_publisher()
    server.set_script(FaultScript(faults=[TooFewIds()]))
    future = publisher.publish(topic, b"data")
    with caplog.at_level(logging.ERROR):
        assert isinstance(future.exception(timeout=1), PublishError)
    assert "Only 0 of 1 messages were published." in caplog.text


def test_r8_a_closed_channel(make_publisher: MakePublisher, topic: str) -> None:
    """Publishing over a closed channel ends with an error within a second."""
    publisher = make_publisher()
    publisher.transport.close()
    future = publisher.publish(topic, b"data")
    assert isinstance(future.exception(timeout=1), ValueError)


@pytest.mark.parametrize("place", ["predicate", "on_error"])
def test_r8_a_users_code_that_raises(
    server: PubSubServer, topic: str, make_publisher: MakePublisher, place: str
) -> None:
    """A predicate or ``on_error`` that raises ends the batch with that; publishing goes on."""

    def boom(error: Exception) -> bool:
        raise ZeroDivisionError(place)

    retry = Retry(boom) if place == "predicate" else Retry(lambda _: True, on_error=boom)
    publisher = make_publisher()
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=1)]))
    future = publisher.publish(topic, b"data", retry=retry)
    assert isinstance(future.exception(timeout=1), ZeroDivisionError)
    publisher.publish(topic, b"data").result(timeout=1)


def test_r8_callbacks_that_raise_harm_nobody(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A done-callback that raises, even ``SystemExit``, leaves the other messages their result."""
    publisher = make_publisher(
        batch_settings=pubsub_v1.types.BatchSettings(max_messages=10, max_latency=10), tokens=0
    )
    futures = [publisher.publish(topic, b"data") for _ in range(3)]

    def leave(_: object) -> None:
        raise SystemExit

    futures[0].add_done_callback(leave)
    futures[1].add_done_callback(lambda _: 1 / 0)
    publisher.flush(timeout=2)
    (attempt,) = server.attempts()
    assert attempt.message_count == 3
    assert len({future.result() for future in futures}) == 3
    again = publisher.publish(topic, b"data")
    publisher.flush(timeout=2)
    assert again.result()


def test_r9_buckets_are_per_topic_and_exact(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Ten successes at 0.1 are one token, on the topic that earned it."""
    other = server.create_topic("other")
    publisher = make_publisher(tokens=0)
    for _ in range(10):
        publisher.publish(topic, b"data").result(timeout=5)
    publisher.flush()
    assert publisher.hedging_stats(topic).tokens == 1
    assert publisher.hedging_stats(other).tokens == 0
    server.set_script(FaultScript(faults=[Stall(0.25, attempts=[0])]))
    publisher.publish(other, b"data").result(timeout=5)
    assert publisher.hedging_stats(other).hedges_suppressed >= 1
    assert publisher.hedging_stats(topic).tokens == 1


def test_r10_every_attempt_carries_what_the_official_client_sends(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The metadata is the official client's, plus the telemetry header; the body is the same."""
    official = pubsub_v1.PublisherClient(ONE_MESSAGE)
    official.publish(topic, b"data", colour="blue").result(timeout=5)
    official.transport.close()
    publisher = make_publisher()
    server.set_script(FaultScript(faults=[StoreThenStall(30, attempts=[0])]))
    before = time.time()
    publisher.publish(topic, b"data", colour="blue").result(timeout=5)
    after = time.time()

    attempts = server.attempts()
    assert numbers(attempts) == [0, 1]
    for attempt in attempts:
        headers = dict(attempt.metadata)
        value = base64.b64decode(str(headers.pop(telemetry.HEADER)))
        expected = base64.b64decode(
            telemetry.encode(attempt.attempt_number or 0, attempt.publish_start_time)
        )
        assert value == expected
        assert attempt.publish_start_time is not None
        assert before - 0.001 <= attempt.publish_start_time <= after
    assert len({attempt.publish_start_time for attempt in attempts}) == 1
    first, second = server.messages()
    assert (first.data, first.attributes) == (second.data, second.attributes)
    assert first.attributes == (("colour", "blue"),)


def test_r10_the_metadata_is_the_official_clients(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Header by header the same as the official client's, but for telemetry."""
    publisher = make_publisher()
    publisher.publish(topic, b"data").result(timeout=5)
    with pubsub_v1.PublisherClient(ONE_MESSAGE) as official:
        official.publish(topic, b"data").result(timeout=5)
    ours, theirs = (dict(attempt.metadata) for attempt in server.attempts())
    assert ours.pop(telemetry.HEADER)
    assert ours == theirs
    assert ours["x-goog-request-params"] == "topic=projects/test/topics/orders"
    assert "gccl/" in str(ours["x-goog-api-client"])


def test_r10_the_start_time_is_that_of_the_oldest_publish(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A message that waits in its batch waits from its ``publish()`` on."""
    publisher = make_publisher(
        batch_settings=pubsub_v1.types.BatchSettings(max_messages=10, max_latency=10), tokens=0
    )
    before = time.time()
    publisher.publish(topic, b"first")
    after = time.time()
    time.sleep(0.2)
    publisher.publish(topic, b"second")
    publisher.flush(timeout=5)
    (attempt,) = server.attempts()
    assert attempt.message_count == 2
    assert attempt.publish_start_time is not None
    assert before - 0.001 <= attempt.publish_start_time <= after


def test_r11_stop_flushes_and_hedging_goes_on(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """``stop()`` returns at once; the batch it sent is hedged until it is decided."""
    publisher = make_publisher(
        batch_settings=pubsub_v1.types.BatchSettings(max_latency=30, max_messages=10)
    )
    earned = publisher.hedging_stats().batches
    server.set_script(stall_originals())
    future = publisher.publish(topic, b"data")
    called = time.monotonic()
    publisher.stop()
    assert_took(0, called)
    assert not future.done()
    future.result(timeout=1)
    assert numbers(server.attempts()) == [0, 1]
    assert publisher.hedging_stats().batches == earned + 1
    with pytest.raises(RuntimeError, match="stopped"):
        publisher.publish(topic, b"late")
    with pytest.raises(RuntimeError, match="stopped"):
        publisher.stop()


@pytest.mark.usefixtures("server")
class TestR12:
    """What cannot work together is refused when the publisher is made, or the call."""

    def test_ordering(self) -> None:
        """Ordering and hedging exclude each other."""
        options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
        with pytest.raises(ValueError, match="enable_message_ordering=True and hedging exclude"):
            HedgedPublisher(publisher_options=options)
        HedgedPublisher(publisher_options=options, hedging_settings=None).close()

    @pytest.mark.parametrize("timeout", [1.0, 0.5])
    def test_the_delay_must_be_below_the_rpc_timeout(self, timeout: float) -> None:
        """A delay that is not strictly below the request's timeout names both values."""
        options = pubsub_v1.types.PublisherOptions(timeout=timeout)
        with pytest.raises(ValueError, match=rf"hedge_delay \(1 s\) .* request \({timeout:g} s\)"):
            HedgedPublisher(publisher_options=options)

    @pytest.mark.parametrize("timeout", [1.0, 0.5])
    def test_the_delay_must_be_below_the_retry_timeout(self, timeout: float) -> None:
        """A delay that is not strictly below the total timeout names both values."""
        options = pubsub_v1.types.PublisherOptions(retry=Retry(timeout=timeout))
        with pytest.raises(ValueError, match=rf"hedge_delay \(1 s\) .* timeout \({timeout:g} s\)"):
            HedgedPublisher(publisher_options=options)

    def test_no_timeout_is_infinite(self) -> None:
        """Without a timeout every delay is below it."""
        options = pubsub_v1.types.PublisherOptions(retry=Retry(timeout=None), timeout=None)
        with HedgedPublisher((), options, hedging_settings=HedgingSettings(10)) as publisher:
            assert publisher.hedging_settings == HedgingSettings(10)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"timeout": 1.0},
            {"timeout": 0.5},
            {"retry": Retry(timeout=1.0)},
            {"timeout": float("nan")},
        ],
        ids=repr,
    )
    def test_a_call_that_breaks_it_raises(self, topic: str, arguments: dict[str, Any]) -> None:
        """A per-call timeout or retry is held against the delay too, and nothing is accepted."""
        with HedgedPublisher() as publisher:
            with pytest.raises(ValueError, match=r"hedge_delay \(1 s\) must be below|nan"):
                publisher.publish(topic, b"data", **arguments)
            assert publisher.hedging_stats().batches == 0

    @pytest.mark.parametrize("transport", ["rest", "grpc_asyncio"])
    def test_transports_without_cancellable_calls(self, transport: str) -> None:
        """REST and asyncio transports are refused, with what to do instead."""
        with pytest.raises(ValueError, match=f"transport='{transport}' .* use 'grpc', or pass"):
            HedgedPublisher(transport=transport)

    def test_a_transport_class_without_cancellable_calls(self) -> None:
        """The class is refused like its name."""
        rest = pubsub_v1.PublisherClient.get_transport_class("rest")
        with pytest.raises(ValueError, match="has no gRPC calls that can be cancelled"):
            HedgedPublisher(transport=rest)

    @pytest.mark.parametrize(
        "arguments",
        [{"retry": "often"}, {"retry": 3}, {"timeout": "1"}, {"timeout": True}],
        ids=repr,
    )
    def test_types_that_cannot_be_interpreted(self, topic: str, arguments: dict[str, Any]) -> None:
        """A retry or timeout of another type is a clear error of the call and of the options."""
        (name,) = arguments
        with pytest.raises(TypeError, match=f"^{name} must be"):
            HedgedPublisher(publisher_options=pubsub_v1.types.PublisherOptions(**arguments))
        with HedgedPublisher() as publisher, pytest.raises(TypeError, match=f"^{name} must be"):
            publisher.publish(topic, b"data", **arguments)


def test_a_losers_failure_is_not_an_error_of_the_batch_under_load(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Answers and hedges that meet in the same millisecond are one result each, every time."""
    publisher = make_publisher(tokens=25, hedging_settings=HedgingSettings(0.1, refill_ratio=0.2))
    server.set_script(FaultScript(latency=Fixed(0.1)))
    futures = [publisher.publish(topic, b"%d" % number) for number in range(300)]
    done, pending = concurrent.futures.wait(futures, timeout=20)
    assert not pending
    assert len({future.result() for future in done}) == 300
    stats = publisher.hedging_stats()
    assert stats.batches == 125 + 300
    assert stats.hedges_won <= stats.hedges_sent
    assert stats.hedges_sent <= stats.batches * 0.2
    # A hedge that is cancelled while it leaves need not reach the server.
    assert 300 <= len(server.attempts()) <= stats.attempts - 125


def test_nothing_of_ours_is_left_running_when_it_is_idle(make_publisher: MakePublisher) -> None:
    """A publisher that was never used started no thread."""
    before = threading.active_count()
    publisher = make_publisher(tokens=0)
    assert publisher.hedging_settings == FAST
    assert threading.active_count() == before
