"""Parity of messages and topics."""

from __future__ import annotations

import concurrent.futures
from typing import Final

from google.cloud.pubsub_v1.publisher import futures

from tests.system_emulated.parity.case import Cases
from tests.system_emulated.parity.scene import Scene

cases: Final = Cases()


@cases.add("data only")
def _(scene: Scene) -> None:
    future = scene.make().publish(scene.topic, b"data")
    scene.note("is a concurrent.futures.Future", isinstance(future, concurrent.futures.Future))
    scene.note("is an official Future", isinstance(future, futures.Future))
    scene.outcome("publish", future)


@cases.add("everything by keyword")
def _(scene: Scene) -> None:
    publisher = scene.make()
    future = publisher.publish(
        topic=scene.topic, data=b"data", ordering_key="", retry=None, timeout=20, key="value"
    )
    scene.outcome("publish", future)


@cases.add("attributes as text and as bytes")
def _(scene: Scene) -> None:
    future = scene.make().publish(scene.topic, b"data", text="text", encoded=b"encoded", empty="")
    scene.outcome("publish", future)


@cases.add("unicode")
def _(scene: Scene) -> None:
    attributes = {"größe": "ÄÖÜ ✓ 訂單 🚚", "訂單": "✓".encode()}
    scene.outcome("publish", scene.make().publish(scene.topic, "✓ 訂單".encode(), **attributes))


@cases.add("attributes that are not UTF-8")
def _(scene: Scene) -> None:
    publisher = scene.make()
    scene.attempt("bytes", publisher.publish, scene.topic, b"data", key=b"\xff")
    scene.attempt("text", publisher.publish, scene.topic, b"data", key="\ud800")


@cases.add("attributes without data")
def _(scene: Scene) -> None:
    scene.outcome("publish", scene.make().publish(scene.topic, b"", key="value"))


@cases.add("neither data nor attributes")
def _(scene: Scene) -> None:
    scene.outcome("publish", scene.make().publish(scene.topic, b""))


@cases.add("data that is not bytes")
def _(scene: Scene) -> None:
    publisher = scene.make()
    for data in ("text", bytearray(b"data"), None, 1):
        scene.attempt(f"{data!r}", publisher.publish, scene.topic, data)


@cases.add("attributes that are neither text nor bytes")
def _(scene: Scene) -> None:
    publisher = scene.make()
    for value in (1, None, True, ["x"]):
        scene.attempt(f"{value!r}", publisher.publish, scene.topic, b"data", key=value)


@cases.add("an ordering key without ordering")
def _(scene: Scene) -> None:
    scene.attempt("publish", scene.make().publish, scene.topic, b"data", ordering_key="key")


@cases.add("9.9 MB")
def _(scene: Scene) -> None:
    scene.outcome("publish", scene.make().publish(scene.topic, b"x" * 9_900_000))


@cases.add("10.1 MB")
def _(scene: Scene) -> None:
    publisher = scene.make()
    scene.attempt("publish", publisher.publish, scene.topic, b"x" * 10_100_000)
    scene.outcome("the next", publisher.publish(scene.topic, b"data"))


@cases.add("a topic that does not exist")
def _(scene: Scene) -> None:
    scene.outcome("publish", scene.make().publish(f"{scene.topic}-missing", b"data"))


@cases.add("a malformed topic name")
def _(scene: Scene) -> None:
    publisher = scene.make()
    for topic in ("orders", "projects//topics/orders", "", "a/b/c/d", "✓"):
        scene.outcome(repr(topic), publisher.publish(topic, b"data"))
