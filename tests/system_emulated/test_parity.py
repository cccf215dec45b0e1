# ruff: noqa: D103 - the name of a program says what it is about
"""The same small programs with the official client and with ours, on Google's emulator.

Stored messages, errors and types are the same, or differ as the README's table says. What is the
same is so on the project's own test server, too.
"""

from __future__ import annotations

import concurrent.futures
import copy
import pickle
import re
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
from google.api_core.retry import Retry
from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.pubsub_v1.publisher import futures
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from hedged_pubsub import HedgedPublisher
from tests.system_emulated.scene import MISSING, Program, Scene

# Nothing goes out by itself, so that what is seen does not depend on time.
PATIENT: Final = BatchSettings(max_latency=600)
ONE_MESSAGE: Final = BatchSettings(max_messages=1, max_latency=600)

PUBLISHES: Final[dict[str, list[dict[str, Any]]]] = {
    "data only": [{}],
    "every argument": [{"ordering_key": "", "retry": None, "timeout": 20, "key": "value"}],
    "attributes as text and as bytes": [{"text": "text", "encoded": b"encoded", "empty": ""}],
    "unicode": [{"data": "✓ 訂單".encode(), "größe": "ÄÖÜ ✓ 訂單 🚚", "訂單": "✓".encode()}],
    "attributes that are not UTF-8": [{"key": b"\xff"}, {"key": "\ud800"}],
    "attributes without data": [{"data": b"", "key": "value"}],
    "every byte": [{"data": bytes(range(256))}],
    "the longest value": [{"key": "x" * 1024}],
    "the most attributes": [{f"key-{n}": f"value {n}" for n in range(100)}],
    "attributes named like things of ours": [{"client": "1", "message": "2", "policy": "3"}],
    "neither data nor attributes": [{"data": b""}],
    "data that is not bytes": [{"data": data} for data in ("text", bytearray(b"data"), None, 1)],
    "attributes of other types": [{"key": value} for value in (1, None, True, ["x"])],
    "9.9 MB": [{"data": b"x" * 9_900_000}],
    "10.1 MB": [{"data": b"x" * 10_100_000}, {}],
    "a topic that does not exist": [{"topic": MISSING}],
    "a malformed topic": [
        {"topic": topic} for topic in ("orders", "projects/test/orders", "", "a/b/c/d", "✓")
    ],
    "timeouts": [{"timeout": 20}, {"timeout": None}],
    "retries": [{"retry": Retry(timeout=20)}, {"retry": None}, {"topic": MISSING, "retry": None}],
    "a retry that runs out": [
        {"topic": MISSING, "retry": Retry(lambda _: True, initial=0.1, maximum=0.1, timeout=1.05)}
    ],
}
"""What is published one after the other by one publisher, as arguments of ``Scene.publish``."""


def _publishing(publishes: list[dict[str, Any]]) -> Program:
    def program(scene: Scene) -> None:
        publisher = scene.make()
        for arguments in publishes:
            scene.publish(publisher, **arguments)

    return program


SAME = [pytest.param(_publishing(rows), id=name) for name, rows in PUBLISHES.items()]
DIFFERENT: list[Any] = []


def same(program: Program) -> Program:
    """Register a program that must do the same with both classes."""
    SAME.append(pytest.param(program, id=program.__name__))
    return program


def different(*, official: str, hedged: str) -> Callable[[Program], Program]:
    """Register a program that differs as documented: in lines of notes that begin so."""

    def register(program: Program) -> Program:
        DIFFERENT.append(pytest.param(program, official, hedged, id=program.__name__))
        return program

    return register


@same
def batches(scene: Scene) -> None:
    for settings, sizes in (
        *(({"max_messages": count}, [10] * 9) for count in (1, 2, 3, 5)),
        ({"max_bytes": 10_000}, (3_000, 3_000, 3_000, 3_000, 9_950, 20_000, 10, 10)),
    ):
        publisher = scene.make_observed(BatchSettings(max_latency=600, **settings))
        sent = [publisher.publish(scene.topic, b"x" * size) for size in sizes]
        publisher.stop()
        scene.outcome("publish", *sent)
        # Two batches of one publisher can overtake each other.
        scene.note("sizes", sorted(scene.sent.sizes))


@same
def a_batch_that_does_not_get_full(scene: Scene) -> None:
    publisher = scene.make_observed(BatchSettings(max_latency=0.3))
    for _ in range(2):
        sent = [publisher.publish(scene.topic, b"data") for _ in range(3)]
        scene.note("at once", [future.done() for future in sent])
        scene.outcome("publish", *sent)
    scene.note("sizes", scene.sent.sizes)


def flow_controlled(
    scene: Scene, behavior: LimitExceededBehavior, batch_settings: BatchSettings = PATIENT
) -> Any:
    """Make a publisher with room for two messages."""
    control = PublishFlowControl(
        message_limit=2, byte_limit=100_000_000, limit_exceeded_behavior=behavior
    )
    return scene.make(batch_settings, PublisherOptions(flow_control=control))


@same
def flow_control(scene: Scene) -> None:
    for behavior in (LimitExceededBehavior.ERROR, LimitExceededBehavior.IGNORE):
        publisher = flow_controlled(scene, behavior)
        sent = [publisher.publish(scene.topic, b"%d" % number) for number in range(5)]
        scene.note("refused at once", [future.done() for future in sent])
        publisher.stop()
        scene.outcome(behavior.name, *sent)
    publisher = flow_controlled(scene, LimitExceededBehavior.BLOCK, BatchSettings(max_messages=1))
    scene.outcome("blocks", *[publisher.publish(scene.topic, b"%d" % n) for n in range(20)])


@same
def a_server_that_is_down(scene: Scene) -> None:
    scene.publish(scene.make_observed(address="127.0.0.1:1"), retry=None, timeout=10)


@same
def a_retry_that_is_told_of_errors(scene: Scene) -> None:
    errors: list[str] = []
    retry = Retry(
        lambda _: len(errors) < 3,
        initial=0.01,
        timeout=20,
        on_error=lambda error: errors.append(type(error).__name__),
    )
    scene.publish(scene.make(), MISSING, retry=retry)
    scene.note("errors", errors)


@same
def a_future(scene: Scene) -> None:
    publisher = scene.make(PATIENT)
    future = publisher.publish(scene.topic, b"data")
    scene.note("concurrent", isinstance(future, concurrent.futures.Future))
    scene.note("official", isinstance(future, futures.Future))
    called: list[str] = []
    late = threading.Event()
    future.add_done_callback(lambda done: called.append(f"first {done is future}"))
    future.add_done_callback(lambda done: called.append(f"second {type(done.result())}"))
    future.add_done_callback(lambda _: late.set())
    for when in ("before", "after"):
        scene.outcome(f"result {when}", future, timeout=0.05)
        scene.attempt(f"exception {when}", future.exception, timeout=0.05)
        for method in (future.cancel, future.cancelled, future.running, future.done):
            scene.note(f"{method.__name__} {when}", method())
        if when == "before":
            publisher.stop()
            scene.outcome("publish", future)
            scene.note("all called", late.wait(10))
    future.add_done_callback(lambda _: called.append("added when done"))
    scene.note("called", called)


@same
def a_future_that_fails(scene: Scene) -> None:
    future = scene.make().publish(f"{scene.topic}-missing", b"data")
    called = threading.Event()
    future.add_done_callback(lambda done: scene.note("seen", type(done.exception()).__name__))
    future.add_done_callback(lambda _: called.set())
    scene.note("called", called.wait(10))
    scene.note("exception is result's", future.exception() is future.exception())


@same
def stopping_and_resuming(scene: Scene) -> None:
    scene.attempt("resume without ordering", scene.make().resume_publish, scene.topic, "key")
    publisher = scene.make(PATIENT)
    future = publisher.publish(scene.topic, b"data")
    scene.attempt("stop", publisher.stop)
    scene.outcome("accepted before", future)
    scene.attempt("publish", publisher.publish, scene.topic, b"data")
    scene.attempt("stop again", publisher.stop)
    scene.attempt("resume", publisher.resume_publish, scene.topic, "key")


@same
def topics_through_the_generated_methods(scene: Scene) -> None:
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
    scene.publish(publisher)
    scene.attempt("delete", publisher.delete_topic, topic=path)
    scene.attempt("delete again", publisher.delete_topic, topic=path)
    scene.attempt("get deleted", publisher.get_topic, topic=path)


@same
def what_a_client_is(scene: Scene) -> None:
    publisher = scene.make(BatchSettings(max_messages=7))
    scene.note("is a PublisherClient", isinstance(publisher, PublisherClient))
    scene.note("batch settings", publisher.batch_settings)
    scene.note("publisher options", [type(option) for option in publisher.publisher_options])
    scene.note("transport", publisher.transport.kind)
    scene.note("public methods missing", set(dir(PublisherClient)) - set(dir(publisher)))
    scene.note("endpoint", publisher.api_endpoint == publisher.target)
    for operation in (pickle.dumps, copy.deepcopy):
        try:
            operation(publisher)
        except Exception as error:  # noqa: BLE001 - any; the texts name an address in memory
            scene.note("copying", type(error))
    traced = scene.make((), PublisherOptions(enable_open_telemetry_tracing=True))
    scene.note("traced", [traced.open_telemetry_enabled, publisher.open_telemetry_enabled])
    scene.attempt("batch settings", scene.make, {"max_messages": 1})
    scene.attempt("options", scene.make, (), (False,))
    scene.attempt("options of a wrong size", scene.make, (), range(20))
    scene.attempt("an unknown argument", scene.make, colour="red")


@same
def other_ways_to_publish(scene: Scene) -> None:
    publisher = scene.make()
    scene.publish(copy.copy(publisher))
    with pytest.warns(DeprecationWarning, match="api"):
        api = publisher.api
    answer = api.publish(topic=scene.topic, messages=[{"data": b"one"}, {"data": b"two"}])
    scene.note("ids", len(answer.message_ids))


_NO_ORDERING = "publish: ValueError: Cannot publish a message with an ordering key when message "


@different(official=_NO_ORDERING, hedged=_NO_ORDERING)
def an_ordering_key_without_ordering(scene: Scene) -> None:
    """Ours says what to do as well."""
    scene.publish(scene.make(), ordering_key="key")


@different(
    official="publish: AssertionError: ", hedged="outcome: google.api_core.exceptions.NotFound"
)
def after_a_full_batch_has_failed(scene: Scene) -> None:
    """The official client refuses the next message, although nothing is wrong with that one."""
    publisher = scene.make(ONE_MESSAGE)
    future = publisher.publish(f"{scene.topic}-missing", b"data")
    scene.note("the first", type(future.exception(timeout=30)))
    scene.publish(publisher, MISSING)


@different(official="timeout: TimeoutError", hedged="timeout: TypeError: timeout must be")
def attributes_called_retry_and_timeout(scene: Scene) -> None:
    """The official client takes them for its arguments, and the future never ends."""
    publisher = scene.make(ONE_MESSAGE)
    died: list[str] = []
    usual, threading.excepthook = threading.excepthook, lambda how: died.append(str(how.exc_type))
    try:
        for name in ("retry", "timeout"):
            future = scene.attempt(name, publisher.publish, scene.topic, b"data", **{name: "value"})
            scene.outcome(name, future, timeout=0.1)
    finally:
        threading.excepthook = usual
    scene.note("threads that died", died)


@different(official="the next is stored: False", hedged="the next is stored: True")
def an_oversize_message_under_flow_control_that_blocks(scene: Scene) -> None:
    """The official client never releases it, so that later messages block for ever."""
    publisher = flow_controlled(scene, LimitExceededBehavior.BLOCK, ONE_MESSAGE)
    for _ in range(2):  # as many as there is room for
        scene.attempt("oversize", publisher.publish, scene.topic, b"x" * 10_000_000)
    stored = threading.Event()

    def publish_next() -> None:
        publisher.publish(scene.topic, b"data").result()
        stored.set()

    threading.Thread(target=publish_next, daemon=True).start()
    scene.note("the next is stored", stored.wait(2))


@different(
    official="headers: [('x-goog-api-client', 'x-goog-request-params')]",
    hedged="headers: [('x-goog-api-client', 'x-goog-pubsub-client-telemetry', ",
)
def headers_of_a_request(scene: Scene) -> None:
    """From ours the service can tell a hedge."""
    scene.publish(scene.make_observed())
    scene.note("headers", scene.sent.headers)


@different(official="sizes: [2]", hedged="sizes: [1, 1]")
def two_timeouts_in_one_batch(scene: Scene) -> None:
    """The official client applies the first message's to both."""
    publisher = scene.make_observed(PATIENT)
    sent = [publisher.publish(scene.topic, b"%d" % n, timeout=n) for n in (10, 20)]
    publisher.stop()
    scene.outcome("publish", *sent)
    scene.note("sizes", scene.sent.sizes)


@different(official="outcome: returns str", hedged="publish: ValueError: hedge_delay (1 s)")
def a_timeout_below_the_hedge_delay(scene: Scene) -> None:
    """With it no request could ever be hedged."""
    scene.publish(scene.make(), timeout=0.9)


@different(official="outcome: returns str", hedged="publish: TypeError: retry must be")
def a_retry_of_another_type(scene: Scene) -> None:
    """Hedging has to interpret the retry; the official client calls anything."""

    def retry(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        return function

    scene.publish(scene.make(), retry=retry)


@different(official="outcome: returns str", hedged="publish: TypeError: topic must be")
def a_topic_that_is_not_text(scene: Scene) -> None:
    """The official client takes bytes, and otherwise names neither argument nor value."""
    publisher = scene.make(ONE_MESSAGE)
    scene.attempt("number", publisher.publish, 1, b"data")
    scene.outcome("none", scene.attempt("none", publisher.publish, None, b"data"))
    scene.publish(publisher, scene.topic.encode())


@different(official="outcome: returns str", hedged="client: ValueError: enable_message_ordering")
def ordering(scene: Scene) -> None:
    """A hedge can overtake."""
    options = PublisherOptions(enable_message_ordering=True)
    if publisher := scene.attempt("client", scene.make, (), options):
        scene.publish(publisher, ordering_key="key")


@pytest.mark.parametrize("program", SAME)
def test_the_same(program: Program, emulator: str, own_server: str) -> None:
    """Both classes do the same in all that a program can see, and the servers but in their texts.

    Google's errors have the texts of the server.
    """
    official = Scene(PublisherClient, emulator).observe(program)
    assert Scene(HedgedPublisher, emulator).observe(program) == official
    own = Scene(HedgedPublisher, own_server).observe(program)
    assert list(map(_without_text, own)) == list(map(_without_text, official))


def _without_text(line: str) -> str:
    return re.sub(r"(google\.api_core\.exceptions\.\w+): .*", r"\1", line)


@pytest.mark.parametrize(("program", "only_official", "only_hedged"), DIFFERENT)
def test_a_documented_difference(
    program: Program, only_official: str, only_hedged: str, emulator: str
) -> None:
    """The classes differ, and each in the way that is documented."""
    official = Scene(PublisherClient, emulator).observe(program)
    hedged = Scene(HedgedPublisher, emulator).observe(program)
    assert any(line.startswith(only_official) for line in official if line not in hedged), official
    assert any(line.startswith(only_hedged) for line in hedged if line not in official), hedged
