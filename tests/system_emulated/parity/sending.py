"""Parity of batching, flow control, retries and timeouts."""

from __future__ import annotations

from typing import Any, Final

from google.api_core.retry import Retry
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from tests.contract.sent import observed_transport
from tests.system_emulated.parity.case import Cases
from tests.system_emulated.parity.scene import Scene

cases: Final = Cases()
# Nothing goes out by itself, so that what is seen does not depend on time.
_PATIENT: Final = BatchSettings(max_latency=600)


@cases.add("batches by count")
def _(scene: Scene) -> None:
    for count in (1, 2, 3, 5):
        publisher = scene.make_observed(BatchSettings(max_messages=count, max_latency=600))
        sent = [publisher.publish(scene.topic, b"%d" % n, of=str(count)) for n in range(9)]
        publisher.stop()
        for future in sent:
            scene.outcome(f"of {count}", future)
    # Two batches of one publisher can overtake each other.
    scene.note("sizes", sorted(scene.sent.sizes))


@cases.add("batches by bytes")
def _(scene: Scene) -> None:
    publisher = scene.make_observed(BatchSettings(max_bytes=10_000, max_latency=600))
    sizes = (3_000, 3_000, 3_000, 3_000, 9_950, 20_000, 10, 10)
    sent = [publisher.publish(scene.topic, b"x" * size) for size in sizes]
    publisher.stop()
    for future in sent:
        scene.outcome("publish", future)
    scene.note("sizes", sorted(scene.sent.sizes))


@cases.add("batches by latency")
def _(scene: Scene) -> None:
    publisher = scene.make_observed(BatchSettings(max_latency=0.3))
    sent = [publisher.publish(scene.topic, b"%d" % number) for number in range(3)]
    scene.note("done at once", any(future.done() for future in sent))
    for future in sent:
        scene.outcome("publish", future)
    scene.note("sizes", scene.sent.sizes)


def flow_controlled(
    scene: Scene, behavior: LimitExceededBehavior, batch_settings: BatchSettings = _PATIENT
) -> Any:
    """Make a publisher that has credit for two messages."""
    control = PublishFlowControl(
        message_limit=2, byte_limit=100_000_000, limit_exceeded_behavior=behavior
    )
    return scene.make(batch_settings, PublisherOptions(flow_control=control))


@cases.add("flow control: error")
def _(scene: Scene) -> None:
    publisher = flow_controlled(scene, LimitExceededBehavior.ERROR)
    sent = [publisher.publish(scene.topic, b"data", n=str(n)) for n in range(3)]
    scene.note("refused at once", [future.done() for future in sent])
    scene.outcome("the third", sent[2])
    publisher.stop()
    for future in sent[:2]:
        scene.outcome("the others", future)


@cases.add("flow control: block")
def _(scene: Scene) -> None:
    publisher = flow_controlled(scene, LimitExceededBehavior.BLOCK, BatchSettings(max_messages=1))
    for future in [publisher.publish(scene.topic, b"%d" % number) for number in range(20)]:
        scene.outcome("publish", future)


@cases.add("flow control: ignore")
def _(scene: Scene) -> None:
    publisher = flow_controlled(scene, LimitExceededBehavior.IGNORE)
    sent = [publisher.publish(scene.topic, b"%d" % number) for number in range(20)]
    publisher.stop()
    for future in sent:
        scene.outcome("publish", future)


@cases.add("a timeout and a retry of the call")
def _(scene: Scene) -> None:
    publisher = scene.make()
    scene.outcome("timeout", publisher.publish(scene.topic, b"1", timeout=20))
    scene.outcome("no timeout", publisher.publish(scene.topic, b"2", timeout=None))
    scene.outcome("retry", publisher.publish(scene.topic, b"3", retry=Retry(timeout=20)))
    scene.outcome("no retry", publisher.publish(scene.topic, b"4", retry=None))
    missing = f"{scene.topic}-missing"
    scene.outcome("no retry, no topic", publisher.publish(missing, b"5", retry=None))


@cases.add("a server that is down")
def _(scene: Scene) -> None:
    publisher = scene.make(_PATIENT, transport=observed_transport("127.0.0.1:1", scene.sent))
    future = publisher.publish(scene.topic, b"data", retry=None, timeout=10)
    publisher.stop()
    scene.outcome("publish", future)


@cases.add("a retry that runs out")
def _(scene: Scene) -> None:
    retry = Retry(lambda _: True, initial=0.1, maximum=0.1, timeout=1.2)
    future = scene.make().publish(f"{scene.topic}-missing", b"data", retry=retry)
    scene.outcome("publish", future)


@cases.add("a retry that is told of errors")
def _(scene: Scene) -> None:
    heard: list[str] = []
    retry = Retry(
        lambda _: len(heard) < 3,
        initial=0.01,
        timeout=20,
        on_error=lambda error: heard.append(type(error).__name__),
    )
    scene.outcome("publish", scene.make().publish(f"{scene.topic}-missing", b"data", retry=retry))
    scene.note("heard", heard)
