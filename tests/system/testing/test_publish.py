"""Publish over real gRPC: faults, records and limits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1

from hedged_pubsub.testing import (
    DropReply,
    FaultScript,
    Fixed,
    PubSubServer,
    Stall,
    Status,
    StoreThenStall,
    TooFewIds,
)

from .raw_client import FIRST_HEDGE, ORIGINAL, RawClient, raw_client, wait_until


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server with one topic."""
    with PubSubServer() as running:
        running.create_topic("orders")
        yield running


@pytest.fixture
def client(server: PubSubServer) -> Iterator[RawClient]:
    """Connect a client without retries."""
    with raw_client(server) as connected:
        yield connected


def outcomes(server: PubSubServer) -> list[str]:
    """Return how the attempts ended, in order of arrival."""
    return [attempt.outcome for attempt in server.attempts()]


def bodies(server: PubSubServer) -> list[bytes]:
    """Return the stored bodies, in order."""
    return [message.data for message in server.messages()]


def test_publishes_are_stored_and_recorded(server: PubSubServer, client: RawClient) -> None:
    """An attempt's record tells what the client sent and how it was answered."""
    before = time.monotonic()
    ids = client.publish(b"a", b"b", metadata=(("x-test", "1"), *FIRST_HEDGE))
    assert [m.message_id for m in server.messages()] == ids
    (attempt,) = server.attempts()
    assert (attempt.number, attempt.topic) == (1, "projects/test/topics/orders")
    assert (attempt.message_count, attempt.attempt_number) == (2, 1)
    assert attempt.publish_start_time is None
    assert ("x-test", "1") in attempt.metadata
    assert attempt.timeout == pytest.approx(20, rel=0.01)
    assert attempt.peer.startswith("ipv4:127.0.0.1:")
    assert (attempt.fault, attempt.outcome, attempt.code) == (None, "answered", None)
    assert attempt.ended is not None
    assert before <= attempt.arrival <= attempt.ended <= time.monotonic()


def test_no_deadline_is_recorded_as_none(server: PubSubServer, client: RawClient) -> None:
    """A call without a deadline has no timeout."""
    client.publish(b"a", timeout=None)
    assert server.attempts()[0].timeout is None


def test_messages_name_their_attempt(server: PubSubServer, client: RawClient) -> None:
    """A duplicate can be told from its original."""
    client.publish(b"a", metadata=ORIGINAL)
    client.publish(b"a", metadata=FIRST_HEDGE)
    assert [(m.attempt_number, m.call) for m in server.messages()] == [(0, 1), (1, 2)]


def test_latency_holds_every_call(server: PubSubServer, client: RawClient) -> None:
    """A latency delays the answer by that much."""
    server.set_script(FaultScript(latency=Fixed(0.1)))
    start = time.monotonic()
    client.publish(b"a")
    assert 0.1 <= time.monotonic() - start < 5


def test_stall_stores_after_the_stall(server: PubSubServer, client: RawClient) -> None:
    """A stalled call that is waited for is stored, then answered."""
    server.set_script(FaultScript(faults=[Stall(0.2)]))
    call = client.start(b"a")
    wait_until(server.attempts)
    assert bodies(server) == []
    assert len(call.result().message_ids) == 1
    assert bodies(server) == [b"a"]
    assert server.attempts()[0].fault == "Stall"


def test_a_stalled_call_that_is_cancelled_is_not_stored(
    server: PubSubServer, client: RawClient
) -> None:
    """A cancel is seen long before the stall ends, and leaves no message."""
    server.set_script(FaultScript(faults=[Stall(0.2, calls=[1])]))
    call = client.start(b"lost")
    wait_until(server.attempts)
    call.cancel()
    wait_until(lambda: outcomes(server) == ["cancelled"])
    (attempt,) = server.attempts()
    assert attempt.ended is not None
    assert attempt.ended - attempt.arrival < 0.2
    # The second call is answered after the first one's stall would have ended.
    server.set_script(FaultScript(faults=[Stall(0.3)]))
    client.publish(b"kept")
    assert bodies(server) == [b"kept"]


def test_a_deadline_counts_as_a_cancel(server: PubSubServer, client: RawClient) -> None:
    """A call whose deadline passes in the stall is recorded as cancelled."""
    server.set_script(FaultScript(faults=[Stall(30)]))
    with pytest.raises(grpc.RpcError) as caught:
        client.publish(b"a", timeout=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: outcomes(server) == ["cancelled"])


def test_cancels_at_any_moment_are_harmless(
    server: PubSubServer, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancel that overtakes its own call is no error, and every attempt ends."""
    server.set_script(FaultScript(latency=Fixed(0.001), faults=[StoreThenStall(0.002, times=150)]))
    calls = [client.start(b"a") for _ in range(300)]
    for call in calls:
        call.cancel()
    client.publish(b"b")
    wait_until(lambda: "pending" not in outcomes(server))
    assert all(attempt.ended is not None for attempt in server.attempts())
    assert caplog.records == []


def test_store_then_stall_keeps_what_was_cancelled(server: PubSubServer, client: RawClient) -> None:
    """The messages are stored at once, and stay when the call is cancelled."""
    server.set_script(FaultScript(faults=[StoreThenStall(30)]))
    call = client.start(b"a")
    wait_until(lambda: bodies(server) == [b"a"])
    assert outcomes(server) == ["pending"]
    call.cancel()
    wait_until(lambda: outcomes(server) == ["cancelled"])
    assert bodies(server) == [b"a"]


def test_store_then_stall_answers_in_the_end(server: PubSubServer, client: RawClient) -> None:
    """A client that waits gets the ids of what was stored."""
    server.set_script(FaultScript(faults=[StoreThenStall(0.1)]))
    assert client.publish(b"a") == [m.message_id for m in server.messages()]


def test_status_fails_n_calls(server: PubSubServer, client: RawClient) -> None:
    """The first calls fail with the code, the next one is answered; only that one is stored."""
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=2)]))
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            client.publish(b"lost")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "fault script" in caught.value.details()
    client.publish(b"kept")
    assert [(a.outcome, a.code) for a in server.attempts()] == [
        ("failed", "UNAVAILABLE"),
        ("failed", "UNAVAILABLE"),
        ("answered", None),
    ]
    assert bodies(server) == [b"kept"]


def test_status_after_a_while(server: PubSubServer, client: RawClient) -> None:
    """A failure can come late."""
    server.set_script(FaultScript(faults=[Status("ABORTED", after=0.1)]))
    start = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        client.publish(b"a")
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert time.monotonic() - start >= 0.1


def test_drop_reply_stores_and_never_answers(server: PubSubServer, client: RawClient) -> None:
    """The client waits until its deadline for the ids of a stored message."""
    server.set_script(FaultScript(faults=[DropReply()]))
    start = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        client.publish(b"a", timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start >= 0.3
    assert bodies(server) == [b"a"]
    assert outcomes(server) == ["dropped"]
    wait_until(lambda: server.attempts()[0].ended is not None)


def test_too_few_ids(server: PubSubServer, client: RawClient) -> None:
    """All messages are stored; one id is missing from the answer."""
    server.set_script(FaultScript(faults=[TooFewIds()]))
    assert len(client.publish(b"a", b"b")) == 1
    assert bodies(server) == [b"a", b"b"]


def test_faults_by_attempt_and_topic(server: PubSubServer, client: RawClient) -> None:
    """Faults pick calls by the attempt number in the header and by topic."""
    server.create_topic("audit")
    faults = [Status("ABORTED", attempts=[1]), Status("INTERNAL", topic="audit")]
    server.set_script(FaultScript(faults=faults))
    client.publish(b"a", metadata=ORIGINAL)
    for code, arguments in (
        ("ABORTED", {"metadata": FIRST_HEDGE}),
        ("INTERNAL", {"topic": server.topic_path("audit")}),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            client.publish(b"a", **arguments)
        assert caught.value.code() is grpc.StatusCode[code]
    assert [a.topic for a in server.attempts("audit")] == [server.topic_path("audit")]
    assert server.messages("audit") == ()
    assert len(server.messages("orders")) == 1


def test_an_outage_window_begins_when_the_script_is_set(
    server: PubSubServer, client: RawClient
) -> None:
    """``between`` counts from set_script; after the window all is well."""
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", between=(0, 0.3))]))
    set_at = time.monotonic()
    failures = 0
    while True:
        try:
            client.publish(b"a")
            break
        except grpc.RpcError:
            failures += 1
            assert time.monotonic() - set_at < 5
    assert failures > 0
    assert time.monotonic() - set_at >= 0.29


def test_set_script_starts_counting_anew(server: PubSubServer, client: RawClient) -> None:
    """Call 1 is the first one after set_script."""
    script = FaultScript(faults=[Status("ABORTED", calls=[1])])
    for _ in range(2):
        server.set_script(script)
        with pytest.raises(grpc.RpcError):
            client.publish(b"a")
        client.publish(b"a")
    assert [attempt.number for attempt in server.attempts()] == [1, 2, 1, 2]


def test_clear_forgets_records_and_keeps_topics(server: PubSubServer, client: RawClient) -> None:
    """After a clear the topic is still there and the records are not."""
    client.publish(b"a")
    server.clear()
    assert server.attempts() == ()
    assert server.messages() == ()
    client.publish(b"b")
    assert bodies(server) == [b"b"]


@pytest.mark.parametrize(
    ("request_bodies", "topic", "code"),
    [
        ([b"a"], "projects/test/topics/unknown", "NOT_FOUND"),
        ([b"a", b""], None, "INVALID_ARGUMENT"),
        ([], None, "INVALID_ARGUMENT"),
        ([bytes(10_000_000)], None, "INVALID_ARGUMENT"),
    ],
    ids=["unknown topic", "empty message", "no messages", "too large"],
)
def test_bad_requests_are_refused(
    server: PubSubServer, client: RawClient, request_bodies: list[bytes], topic: str, code: str
) -> None:
    """What the real service refuses is refused with its code, recorded, and not stored."""
    with pytest.raises(grpc.RpcError) as caught:
        client.publish(*request_bodies, topic=topic)
    assert caught.value.code() is grpc.StatusCode[code]
    assert [(a.outcome, a.code) for a in server.attempts()] == [("failed", code)]
    assert bodies(server) == []


def test_requests_up_to_the_limit_are_stored(server: PubSubServer, client: RawClient) -> None:
    """A request of nearly 10 MB passes; gRPC's own limit of 4 MB does not apply."""
    assert len(client.publish(bytes(9_999_900))) == 1


def test_attributes_without_data_are_a_message(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official client's message of attributes only is stored."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
    with pubsub_v1.PublisherClient() as publisher:
        publisher.publish(server.topic_path("orders"), b"", kind="note").result(10)
    assert server.messages()[0].attributes == (("kind", "note"),)


def test_topics_through_the_official_client(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Create, get, list in pages, update and delete work as the official client expects."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
    with pubsub_v1.PublisherClient() as publisher:
        paths = [server.topic_path(f"t{number}") for number in range(5)]
        for path in paths:
            assert publisher.create_topic(name=path).name == path
        with pytest.raises(exceptions.AlreadyExists):
            publisher.create_topic(name=paths[0])
        request = {"project": "projects/test", "page_size": 2}
        assert [t.name for t in publisher.list_topics(request=request)][1:] == paths
        updated = publisher.update_topic(
            request={
                "topic": {"name": paths[0], "labels": {"team": "shop"}},
                "update_mask": {"paths": ["labels"]},
            }
        )
        assert updated.labels == {"team": "shop"}
        assert publisher.get_topic(topic=paths[0]) == updated
        server.create_subscription("s", "t0")
        names = list(publisher.list_topic_subscriptions(topic=paths[0]))
        assert names == [server.subscription_path("s")]
        publisher.delete_topic(topic=paths[0])
        with pytest.raises(exceptions.NotFound):
            publisher.get_topic(topic=paths[0])
        with pytest.raises(exceptions.InvalidArgument):
            list(publisher.list_topics(request={"project": "projects/test", "page_token": "x"}))


def test_the_official_client_retries_a_status(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official client gets through an UNAVAILABLE and carries no attempt number."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=1)]))
    with pubsub_v1.PublisherClient() as publisher:
        publisher.publish(server.topic_path("orders"), b"a").result(10)
    assert outcomes(server) == ["failed", "answered"]
    assert {attempt.attempt_number for attempt in server.attempts()} == {None}
