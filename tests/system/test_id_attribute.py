"""``id_attribute``: every message gets an id, by which its duplicates are found."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, PubSubServer, StoreThenStall

from .conftest import TOPIC, Make, both_kinds


@both_kinds
def test_all_attempts_carry_the_same_id(make: Make, server: PubSubServer) -> None:
    """A hedge stores the message again, with another message id and the same id of its own."""
    script = FaultScript(faults=[StoreThenStall(30.0, attempts=[0])])
    publisher = make(tokens=1, script=script, id_attribute="event_id")

    publisher.publish(TOPIC, b"order", shop="one").result(timeout=10)

    first, second = server.messages()
    assert first.message_id != second.message_id
    assert dict(first.attributes) == dict(second.attributes)
    assert dict(first.attributes).keys() == {"event_id", "shop"}
    assert [[one.message_id for one in copies] for copies in server.duplicates("event_id")] == [
        [first.message_id, second.message_id]
    ]


@pytest.mark.parametrize("hedged", [True, False])
@both_kinds
def test_each_message_has_an_id_of_its_own(make: Make, server: PubSubServer, hedged: bool) -> None:
    """With hedging off as well; the usual message without attributes too; a given one is kept."""
    options = {} if hedged else {"hedging_settings": None}
    publisher = make(id_attribute="event_id", **options)

    futures = [publisher.publish(TOPIC, b"order") for _ in range(10)]
    futures.append(publisher.publish(TOPIC, b"order", event_id="4711"))
    publisher.flush(timeout=10)
    for future in futures:
        future.result(timeout=10)

    ids = [dict(message.attributes)["event_id"] for message in server.messages()]
    assert len(set(ids)) == 11
    assert "4711" in ids
    assert server.duplicates("event_id") == ()


def test_a_patched_publish_sees_the_id(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tracers put around the official method gets the message as it is sent."""
    seen: list[Any] = []
    official = pubsub_v1.PublisherClient.publish

    def patched(self: Any, topic: str, data: bytes, **attrs: Any) -> Any:
        seen.append(attrs["event_id"])
        return official(self, topic, data, **attrs)

    monkeypatch.setattr(pubsub_v1.PublisherClient, "publish", patched)
    with HedgedPublisher(id_attribute="event_id") as publisher:
        publisher.publish(TOPIC, b"order").result(timeout=10)

    assert [dict(one.attributes)["event_id"] for one in server.messages()] == seen


@both_kinds
def test_a_bad_name_is_refused_before_anything_is_made(make: Make) -> None:
    """The constructor raises, and names the argument."""
    with pytest.raises(ValueError, match="id_attribute='goog-id'"):
        make(id_attribute="goog-id")
