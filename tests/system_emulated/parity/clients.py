"""Parity of futures, life cycle, and the rest of the client."""

from __future__ import annotations

import pickle
import threading
from typing import Final

from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.pubsub_v1.types import BatchSettings

from tests.system_emulated.parity.case import Cases
from tests.system_emulated.parity.scene import Scene

cases: Final = Cases()
# Nothing goes out by itself, so that what is seen does not depend on time.
_PATIENT: Final = BatchSettings(max_latency=600)


@cases.add("a result that is not there yet")
def _(scene: Scene) -> None:
    publisher = scene.make(_PATIENT)
    future = publisher.publish(scene.topic, b"data")
    scene.attempt("result", future.result, timeout=0.05)
    scene.attempt("exception", future.exception, timeout=0.05)
    scene.note("done", future.done())
    publisher.stop()
    scene.outcome("publish", future)
    scene.note("done", future.done())


@cases.add("cancelling a future")
def _(scene: Scene) -> None:
    publisher = scene.make(_PATIENT)
    future = publisher.publish(scene.topic, b"data")
    for when in ("before", "after"):
        scene.note(f"cancel {when}", future.cancel())
        scene.note(f"cancelled {when}", future.cancelled())
        scene.note(f"running {when}", future.running())
        if when == "before":
            publisher.stop()
            scene.outcome("publish", future)


@cases.add("callbacks")
def _(scene: Scene) -> None:
    publisher = scene.make(_PATIENT)
    future = publisher.publish(scene.topic, b"data")
    called: list[str] = []
    late = threading.Event()
    future.add_done_callback(lambda done: called.append(f"first {done is future}"))
    future.add_done_callback(lambda done: called.append(f"second {type(done.result())}"))
    future.add_done_callback(lambda _: late.set())
    publisher.stop()
    scene.outcome("publish", future)
    scene.note("all called", late.wait(10))
    future.add_done_callback(lambda _: called.append("added when done"))
    scene.note("called", called)


@cases.add("callbacks of what fails")
def _(scene: Scene) -> None:
    future = scene.make().publish(f"{scene.topic}-missing", b"data")
    called = threading.Event()
    seen: list[str] = []
    future.add_done_callback(lambda done: seen.append(type(done.exception()).__name__))
    future.add_done_callback(lambda _: called.set())
    scene.note("called", called.wait(10))
    scene.note("seen", seen)
    scene.note("exception is result's", future.exception() is future.exception())


@cases.add("publishing and stopping after stop")
def _(scene: Scene) -> None:
    publisher = scene.make(_PATIENT)
    future = publisher.publish(scene.topic, b"data")
    scene.attempt("stop", publisher.stop)
    scene.outcome("accepted before", future)
    scene.attempt("publish", publisher.publish, scene.topic, b"data")
    scene.attempt("stop again", publisher.stop)
    scene.attempt("resume", publisher.resume_publish, scene.topic, "key")


@cases.add("resuming without ordering")
def _(scene: Scene) -> None:
    scene.attempt("resume", scene.make().resume_publish, scene.topic, "key")


@cases.add("topics through the generated methods")
def _(scene: Scene) -> None:
    publisher = scene.make()
    project, _, _ = scene.topic.partition("/topics/")
    path = publisher.topic_path(project.partition("/")[2], "invoices")
    scene.note("path", path)
    scene.note("parsed", publisher.parse_topic_path(path))
    scene.attempt("create", publisher.create_topic, name=path)
    scene.attempt("create again", publisher.create_topic, request={"name": path})
    scene.note("get", publisher.get_topic(topic=path).name)
    scene.note("list", sorted(topic.name for topic in publisher.list_topics(project=project)))
    scene.note("subscriptions", list(publisher.list_topic_subscriptions(topic=scene.topic)))
    scene.outcome("publish", publisher.publish(scene.topic, b"data"))
    scene.attempt("delete", publisher.delete_topic, topic=path)
    scene.attempt("delete again", publisher.delete_topic, topic=path)
    scene.attempt("get deleted", publisher.get_topic, topic=path)


@cases.add("what a client is")
def _(scene: Scene) -> None:
    settings = BatchSettings(max_messages=7)
    publisher = scene.make(settings)
    scene.note("is a PublisherClient", isinstance(publisher, PublisherClient))
    scene.note("batch settings", publisher.batch_settings)
    scene.note("publisher options", [type(option) for option in publisher.publisher_options])
    scene.note("transport", publisher.transport.kind)
    scene.note("public methods missing", set(dir(PublisherClient)) - set(dir(publisher)))
    scene.note("endpoint", publisher.api_endpoint == publisher.target)
    try:
        pickle.dumps(publisher)
    except Exception as error:  # noqa: BLE001 - any; the texts name an address in memory
        scene.note("pickling", type(error))


@cases.add("settings of another type")
def _(scene: Scene) -> None:
    scene.attempt("batch settings", scene.make, {"max_messages": 1})
    scene.attempt("options", scene.make, (), (False,))
    scene.attempt("options of a wrong size", scene.make, (), range(20))
    scene.attempt("an unknown argument", scene.make, colour="red")
