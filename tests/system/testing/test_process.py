"""The server's own process: how it starts, and that it never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1 import types

from hedged_pubsub.testing import (
    FaultScript,
    Fixed,
    PubSubServer,
    ResetConnection,
    Status,
    StatusError,
)
from hedged_pubsub.testing.child import Child
from tests.system.conftest import TOPIC, wait_until

from .conftest import fails, raw_client

PARENT = """
import os, signal, time
from hedged_pubsub.testing import PubSubServer

server = PubSubServer(process=True, auto_create_topics=True)
server.start()
print(server.port, flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)
if not os.fork():  # it holds the pipes to the server open
    time.sleep(60)
# A shell's background job, which this may be, ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print(server.create_topic("after"), flush=True)
"""
END_WITH_OPEN_CALLS = """
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

server = PubSubServer(FaultScript(faults=[Stall(600)]))
server.start()
server.create_subscription("s", server.create_topic("orders"))
print(server.address, flush=True)
while not server.attempts():
    pass
"""


def read_line(parent: subprocess.Popen[str]) -> str:
    """Return the next line that the script prints."""
    assert parent.stdout is not None
    return parent.stdout.readline().strip()


def is_free(port: int) -> bool:
    """Tell whether nothing listens on the port any more."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_every_method_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Scripts, records and errors cross the process boundary as they are; records survive it.

    A file in the current folder named like a dependency is not imported by the server.
    """
    (tmp_path / "proto.py").write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    # What the interpreter puts there for a script or for -m is not what this test is about.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    with PubSubServer(process=True, relay=True) as server, raw_client(server) as client:
        before = time.monotonic()
        server.create_topic("orders")
        server.create_subscription("shop", "orders")
        with pytest.raises(StatusError, match=r"ALREADY_EXISTS: .*orders"):
            server.create_topic("orders")
        with pytest.raises(StatusError, match=r"NOT_FOUND: .*unknown"):
            server.create_subscription("s", "unknown")
        with pytest.raises(RuntimeError, match=f"port={server.port}"):
            PubSubServer(process=True, port=server.port).start()
        selective = Status(
            "ABORTED", calls=[1], attempts=range(2), times=3, topic="orders", between=(0, 600)
        )
        server.set_script(FaultScript(latency=Fixed(0), faults=[selective, ResetConnection()]))
        with fails("ABORTED"):
            client.publish(b"lost")
        with fails("UNAVAILABLE"):
            client.publish(b"lost")
        wait_until(lambda: all(a.ended is not None for a in server.attempts()))
        server.set_script(FaultScript())
        client.publish(b"kept")
        assert [(a.number, a.fault, a.outcome, a.code) for a in server.attempts("orders")] == [
            (1, "Status", "failed", "ABORTED"),
            (2, "ResetConnection", "dropped", None),
            (1, None, "answered", None),
        ]
        # All processes of a machine share the monotonic clock.
        assert all(before < a.arrival < time.monotonic() for a in server.attempts())
        assert [m.data for m in server.messages("orders")] == [b"kept"]
        server.clear()
        assert not server.attempts() + server.messages()
        client.publish(b"last")
    assert [m.data for m in server.messages()] == [b"last"]
    assert len(server.attempts()) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_its_parent(number: signal.Signals) -> None:
    """A killed parent takes the server along, even if a forked child holds the pipes open.

    Ctrl-C reaches the whole process group; the server serves on while its parent cleans up.
    """
    with subprocess.Popen(  # noqa: S603 - our own code
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            port = int(read_line(parent))
            assert read_line(parent) == "ready"
            assert not is_free(port)
            if number == signal.SIGKILL:
                parent.kill()
            else:
                os.killpg(parent.pid, number)
                assert read_line(parent) == "projects/test/topics/after"
            wait_until(lambda: is_free(port), timeout=60)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)  # it has not been waited for yet, nor its fork


def test_a_child_that_does_not_start_tells_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error has what the child wrote to its standard error."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.exit('no server today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="no server today"):
        PubSubServer(process=True).start()


def test_a_dead_process_is_reported_and_can_be_replaced() -> None:
    """After a crash every use says so, a stop does not raise, and a start begins empty."""
    server = PubSubServer(process=True, auto_create_topics=True)
    server.start()
    with raw_client(server) as client:
        client.publish(b"a")
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="exit code: -9"):
        server.attempts()
    server.stop()
    with pytest.raises(RuntimeError, match="exit code: -9"):
        server.messages()
    with server, raw_client(server) as client:
        assert client.publish(b"a") == ["1"]


def generator(_held: object) -> Iterator[None]:
    """Return something that cannot be pickled."""
    yield


def hang(_held: object) -> None:
    """Never answer."""
    signal.pause()


def test_a_child_holds_an_object_and_survives_what_goes_wrong_with_it() -> None:
    """Results and errors come back, prints do not get between; what hangs is killed."""
    child = Child(list, [1], timeout=None, quiet=True)
    try:
        child.call(list.append, 2)
        child.call(print)
        with pytest.raises(ValueError, match="3"):
            child.call(list.index, 3)
        with pytest.raises(TypeError, match="pickle"):
            child.call(generator)
        assert child.call(list.copy) == [1, 2]
        child.timeout = 0.1
        with pytest.raises(RuntimeError, match=r"exit code: -9.*\n\[1, 2\]"):
            child.call(hang)
    finally:
        child.end()


def test_a_program_ends_while_its_server_holds_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server in this process that is never stopped does not keep the interpreter alive."""
    with subprocess.Popen(  # noqa: S603 - our own code
        [sys.executable, "-c", END_WITH_OPEN_CALLS], stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            # The clients are here: gRPC's own, left open, may hang in a program's last moment.
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", read_line(program))
            with SubscriberClient() as subscriber, PublisherClient() as publisher:
                shop = "projects/test/subscriptions/s"
                pull = types.StreamingPullRequest(subscription=shop, stream_ack_deadline_seconds=10)
                pulling = subscriber.transport.streaming_pull(iter([pull]))
                request = types.PublishRequest(topic=TOPIC, messages=[{"data": b"x"}])
                publishing = publisher.transport.publish.future(request)
                assert program.wait(60) == 0
                del pulling, publishing  # open calls end with their last reference
        finally:
            program.kill()
