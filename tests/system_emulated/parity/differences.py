"""The documented differences: the cases that must not come out the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior, PublisherOptions

from tests.system_emulated.parity.case import Cases, Difference
from tests.system_emulated.parity.scene import Scene
from tests.system_emulated.parity.sending import flow_controlled

cases: Final = Cases()
_PATIENT: Final = BatchSettings(max_latency=600)
_ONE_MESSAGE: Final = BatchSettings(max_messages=1)


@cases.add(
    "after a full batch has failed",
    difference=Difference(
        reason="the official client refuses the next message with an AssertionError, although "
        "nothing is wrong with that one; ours sends it in a new batch",
        official="second: AssertionError: ",
        hedged="second: google.api_core.exceptions.NotFound",
    ),
)
def _(scene: Scene) -> None:
    publisher = scene.make(_ONE_MESSAGE)
    missing = f"{scene.topic}-missing"
    scene.outcome("first", publisher.publish(missing, b"data"))
    future = scene.attempt("second", publisher.publish, missing, b"data")
    if future is not None:
        scene.outcome("second", future)


@cases.add(
    "attributes called retry and timeout",
    difference=Difference(
        reason="the official client takes them for its arguments, and the future never ends; ours "
        "says that they are of a wrong type",
        official="timeout: TimeoutError",
        hedged="timeout: TypeError: timeout must be",
    ),
)
def _(scene: Scene) -> None:
    publisher = scene.make(_ONE_MESSAGE)
    died: list[str] = []
    usual, threading.excepthook = threading.excepthook, lambda how: died.append(str(how.exc_type))
    try:
        for name in ("retry", "timeout"):
            future = scene.attempt(name, publisher.publish, scene.topic, b"data", **{name: "value"})
            if future is not None:
                scene.outcome(name, future, timeout=1.0)
    finally:
        threading.excepthook = usual
    scene.note("threads that died", died)


@cases.add(
    "an oversize message under flow control that blocks",
    difference=Difference(
        reason="the official client never gives its credit back, so that later messages block for "
        "ever; ours does",
        official="the next is stored: False",
        hedged="the next is stored: True",
    ),
)
def _(scene: Scene) -> None:
    publisher = flow_controlled(scene, LimitExceededBehavior.BLOCK, _ONE_MESSAGE)
    for _ in range(2):  # as many as it lends credit for
        scene.attempt("oversize", publisher.publish, scene.topic, b"x" * 10_000_000)
    accepted = threading.Event()

    def publish_next() -> None:
        publisher.publish(scene.topic, b"data").result()
        accepted.set()

    threading.Thread(target=publish_next, daemon=True).start()
    scene.note("the next is stored", accepted.wait(2.0))


@cases.add(
    "headers of a request",
    difference=Difference(
        reason="ours adds x-goog-pubsub-client-telemetry, from which the service can tell a hedge",
        official="headers: [('x-goog-api-client', 'x-goog-request-params')]",
        hedged="headers: [('x-goog-api-client', 'x-goog-pubsub-client-telemetry', ",
    ),
)
def _(scene: Scene) -> None:
    scene.outcome("publish", scene.make_observed().publish(scene.topic, b"data"))
    scene.note("headers", scene.sent.headers)


@cases.add(
    "two timeouts in one batch",
    difference=Difference(
        reason="the official client applies the first message's to both; ours sends two batches",
        official="sizes: [2]",
        hedged="sizes: [1, 1]",
    ),
)
def _(scene: Scene) -> None:
    publisher = scene.make_observed(_PATIENT)
    sent = [publisher.publish(scene.topic, b"%d" % n, timeout=n) for n in (10, 20)]
    publisher.stop()
    for future in sent:
        scene.outcome("publish", future)
    scene.note("sizes", scene.sent.sizes)


@cases.add(
    "a timeout below the hedge delay",
    difference=Difference(
        reason="hedging could never come to a hedge, so ours refuses it and names both values",
        official="publish: stored",
        hedged="publish: ValueError: hedge_delay (1 s) must be below",
    ),
)
def _(scene: Scene) -> None:
    publisher = scene.make()
    future = scene.attempt("publish", publisher.publish, scene.topic, b"data", timeout=0.9)
    if future is not None:
        scene.outcome("publish", future)


@cases.add(
    "a retry of another type",
    difference=Difference(
        reason="hedging has to interpret the retry, so ours takes only google.api_core's Retry",
        official="publish: stored",
        hedged="publish: TypeError: retry must be",
    ),
)
def _(scene: Scene) -> None:
    def retry(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return function

    future = scene.attempt("publish", scene.make().publish, scene.topic, b"data", retry=retry)
    if future is not None:
        scene.outcome("publish", future)


@cases.add(
    "a topic that is no text",
    difference=Difference(
        reason="the official client takes bytes, takes None for an empty name, and names neither "
        "argument nor value in the error for anything else; ours raises a TypeError that does",
        official="bytes: stored",
        hedged="bytes: TypeError: topic must be",
    ),
)
def _(scene: Scene) -> None:
    publisher = scene.make(_ONE_MESSAGE)
    for kind, topic in (("number", 1), ("none", None), ("bytes", scene.topic.encode())):
        future = scene.attempt(kind, publisher.publish, topic, b"data")
        if future is not None:
            scene.outcome(kind, future)


@cases.add(
    "ordering",
    difference=Difference(
        reason="a hedge can overtake, so ours refuses ordering while hedging is on",
        official="publish: stored",
        hedged="client: ValueError: enable_message_ordering=True",
    ),
)
def _(scene: Scene) -> None:
    options = PublisherOptions(enable_message_ordering=True)
    publisher = scene.attempt("client", scene.make, (), options)
    if publisher is not None:
        scene.outcome("publish", publisher.publish(scene.topic, b"data", ordering_key="key"))
