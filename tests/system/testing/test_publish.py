"""Publish over real gRPC: faults, records and limits."""

from __future__ import annotations

import os
import time

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1

from hedged_pubsub.testing import (
    DropReply,
    Fault,
    FaultScript,
    Fixed,
    PubSubServer,
    ResetConnection,
    Stall,
    Status,
    StoreThenStall,
    TooFewIds,
)
from tests.system.conftest import wait_until

from .conftest import FIRST_HEDGE, ORIGINAL, RawClient, bodies, fails, outcomes, raw_client


def test_publishes_are_stored_and_recorded(server: PubSubServer, client: RawClient) -> None:
    """An attempt's record tells what the client sent and how it was answered."""
    before = time.monotonic()
    ids = client.publish(b"a", b"b", metadata=(("x-test", "1"), *FIRST_HEDGE))
    assert [m.message_id for m in server.messages()] == ids
    client.publish(b"c")
    attempt, other = server.attempts()
    assert other.attempt_number is None
    assert (attempt.number, attempt.topic) == (1, "projects/test/topics/orders")
    assert (attempt.message_count, attempt.attempt_number) == (2, 1)
    assert attempt.publish_start_time is None
    assert ("x-test", "1") in attempt.metadata
    assert attempt.timeout == pytest.approx(20, rel=0.01)
    assert attempt.peer.startswith("ipv4:127.0.0.1:")
    assert (attempt.fault, attempt.outcome, attempt.code) == (None, "answered", None)
    assert attempt.ended
    assert before <= attempt.arrival <= attempt.ended <= time.monotonic()


def test_a_held_call_is_answered_in_the_end(server: PubSubServer, client: RawClient) -> None:
    """A client that waits gets the ids of what was stored, or the status, that much later."""
    held, stored = Stall(0.1, calls=[2]), StoreThenStall(0.1, calls=[3])
    faults = [Status("ABORTED", calls=[1], after=0.1), held, stored, TooFewIds(calls=[5])]
    server.set_script(FaultScript(latency=Fixed(0.1), faults=faults))
    start = time.monotonic()
    with fails("ABORTED"):
        client.publish(b"lost")
    ids = [message_id for _ in range(3) for message_id in client.publish(b"a")]
    assert time.monotonic() - start >= 0.4
    ids += client.publish(b"b", b"c")
    assert ids == [m.message_id for m in server.messages()][:-1]
    assert bodies(server)[-2:] == [b"b", b"c"]
    assert [(a.fault, a.outcome, a.code) for a in server.attempts()] == [
        ("Status", "failed", "ABORTED"),
        ("Stall", "answered", None),
        ("StoreThenStall", "answered", None),
        (None, "answered", None),
        ("TooFewIds", "answered", None),
    ]


@pytest.mark.parametrize(
    ("fault", "stored", "outcome"),
    [
        (Stall(60), [], "cancelled"),
        (StoreThenStall(60), [b"a"], "cancelled"),
        (DropReply(), [b"a"], "dropped"),
    ],
    ids=["stall", "store", "drop"],
)
@pytest.mark.parametrize("timeout", [60, 0.2], ids=["cancelled", "timed out"])
def test_a_held_call_ends_with_its_client(
    server: PubSubServer,
    client: RawClient,
    fault: Fault,
    stored: list[bytes],
    outcome: str,
    timeout: float,
) -> None:
    """A cancel or a deadline is seen long before a stall ends; what was stored before stays."""
    server.set_script(FaultScript(faults=[fault]))
    call = client.start(b"a", timeout=timeout)
    wait_until(lambda: server.attempts() and bodies(server) == stored)
    if timeout == 60:
        call.cancel()
    else:
        with fails("DEADLINE_EXCEEDED"):
            call.result()
    wait_until(lambda: server.attempts()[0].ended is not None)
    assert (outcomes(server), bodies(server)) == ([outcome], stored)


def test_a_call_that_timed_out_in_its_stall_is_never_stored(
    server: PubSubServer, client: RawClient
) -> None:
    """The end of the stall changes nothing."""
    client.publish(b"connects")  # which may take longer than the call below has
    server.clear()
    server.set_script(FaultScript(faults=[Stall(0.3, calls=[1]), Stall(0.4)]))
    with fails("DEADLINE_EXCEEDED"):
        client.publish(b"lost", timeout=0.1)
    client.publish(b"kept")  # is answered after the first one's stall would have ended
    assert outcomes(server) == ["cancelled", "answered"]
    assert bodies(server) == [b"kept"]


def test_cancels_at_any_moment_are_harmless(
    server: PubSubServer, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancel that arrives before its own call is no error, and every attempt ends."""
    server.set_script(FaultScript(latency=Fixed(0.001), faults=[StoreThenStall(0.002, times=150)]))
    calls = [client.start(b"a") for _ in range(300)]
    for call in calls:
        call.cancel()
    client.publish(b"b")
    wait_until(lambda: "pending" not in outcomes(server))
    assert all(attempt.ended is not None for attempt in server.attempts())
    assert caplog.records == []


def test_faults_by_attempt_and_topic(server: PubSubServer, client: RawClient) -> None:
    """Faults pick calls by the attempt number in the header and by topic."""
    audit = server.create_topic("audit")
    faults = [Status("ABORTED", attempts=[1]), Status("INTERNAL", topic="audit")]
    server.set_script(FaultScript(faults=faults))
    with fails("ABORTED"):
        client.publish(b"a", metadata=FIRST_HEDGE)
    with fails("INTERNAL"):
        client.publish(b"a", topic=audit)
    client.publish(b"a", metadata=ORIGINAL, timeout=None)
    assert [a.topic for a in server.attempts("audit")] == [audit]
    assert server.messages("audit") == ()
    assert [(m.attempt_number, m.call) for m in server.messages("orders")] == [(0, 3)]
    assert server.attempts("orders")[1].timeout is None


def test_an_outage_window_begins_when_the_script_is_set(
    server: PubSubServer, client: RawClient
) -> None:
    """``between`` counts from set_script; after the window all is well."""
    set_at = time.monotonic()
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", between=(0, 0.3))]))
    while isinstance(client.start(b"a").exception(), grpc.RpcError):
        assert time.monotonic() - set_at < 60
    assert time.monotonic() - set_at >= 0.3
    assert outcomes(server)[0] == "failed"


def test_bad_requests_are_refused(server: PubSubServer, client: RawClient) -> None:
    """What the real service refuses is refused with its code, recorded, and not stored."""
    with fails("NOT_FOUND"):
        client.publish(b"a", topic="projects/test/topics/unknown")
    for refused in ([b"a", b""], [], [bytes(10_000_000)], [b"a"] * 1001):
        with fails("INVALID_ARGUMENT"):
            client.publish(*refused)
    for message in (
        {"data": b"a", "ordering_key": "k" * 1025},
        {"attributes": {"v": "é" * 513}},
        {"attributes": {"n" * 257: "v"}},
        {"attributes": {str(number): "v" for number in range(101)}},
    ):
        with fails("INVALID_ARGUMENT"):
            client.publish(message)
    assert outcomes(server) == ["failed"] * 9
    assert [a.code for a in server.attempts()] == ["NOT_FOUND", *["INVALID_ARGUMENT"] * 8]
    assert bodies(server) == []
    most = {"attributes": {"n" * 256: "é" * 512}, "ordering_key": "k" * 1024}
    for allowed in ([bytes(9_999_900)], [b"a"] * 1000, [most]):
        assert len(client.publish(*allowed)) == len(allowed)
    assert server.messages()[-1].ordering_key == "k" * 1024


def test_topics_through_the_official_client(server: PubSubServer, topic: str) -> None:
    """Pages, updates and the list of a topic's subscriptions are as the official client expects."""
    paths = sorted([topic, *(server.create_topic(f"t{number}") for number in range(4))])
    with pubsub_v1.PublisherClient() as publisher:
        request = {"project": "projects/test", "page_size": 2}
        assert sorted(found.name for found in publisher.list_topics(request=request)) == paths
        changed = {"name": topic, "labels": {"team": "shop"}, "kms_key_name": "not in the mask"}
        updated = publisher.update_topic(topic=changed, update_mask={"paths": ["labels"]})
        assert (updated.labels, updated.kms_key_name) == ({"team": "shop"}, "")
        assert publisher.get_topic(topic=topic) == updated
        subscription = server.create_subscription("s", topic)
        assert list(publisher.list_topic_subscriptions(topic=topic)) == [subscription]
        with pytest.raises(exceptions.InvalidArgument):
            publisher.list_topics(request={**request, "page_token": "x"})


def test_a_reset_breaks_all_calls_of_its_connection_and_no_other(relayed: PubSubServer) -> None:
    """The call that meets the fault fails, and so does what shares its connection."""
    assert os.environ["PUBSUB_EMULATOR_HOST"] == relayed.address
    held, struck = Stall(0.5, calls=[1]), ResetConnection(calls=[3])
    relayed.set_script(FaultScript(faults=[held, Stall(600, calls=[2]), struck]))
    with raw_client(relayed) as one, raw_client(relayed) as other:
        kept = other.start(b"kept")
        wait_until(relayed.attempts)
        bystander = one.start(b"bystander")
        wait_until(lambda: len(relayed.attempts()) == 2)
        for call in (one.start(b"struck"), bystander):
            with fails("UNAVAILABLE"):
                call.result()
        assert len(kept.result().message_ids) == 1
        wait_until(lambda: all(a.ended is not None for a in relayed.attempts()))
        one.publish(b"new")
    assert [(a.fault, a.outcome) for a in relayed.attempts()] == [
        ("Stall", "answered"),
        ("Stall", "cancelled"),
        ("ResetConnection", "dropped"),
        (None, "answered"),
    ]
    assert bodies(relayed) == [b"kept", b"new"]
    # Peers are the clients' own addresses.
    kept_peer, first_peer, second_peer, new_peer = (a.peer for a in relayed.attempts())
    assert len({kept_peer, first_peer, new_peer}) == 3
    assert first_peer == second_peer


def test_a_reset_of_a_call_that_is_gone_is_harmless(relayed: PubSubServer) -> None:
    """A client that goes away at the same moment does not break the relay."""
    relayed.set_script(FaultScript(faults=[DropReply(calls=[1]), ResetConnection(times=20)]))
    for _ in range(20):
        with raw_client(relayed) as client:
            client.start(b"a").cancel()
    relayed.set_script(FaultScript())
    with raw_client(relayed) as client:
        client.publish(b"b")
