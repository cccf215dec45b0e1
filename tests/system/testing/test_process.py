"""The server's own process: how it starts, and that it never outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from hedged_pubsub.testing import FaultScript, PubSubServer, ResetConnection, Status, StatusError

from .raw_client import raw_client, wait_until

PARENT = """
import os, sys, time
from hedged_pubsub.testing import PubSubServer

server = PubSubServer(process=True, auto_create_topics=True)
server.start()
print(server.port, flush=True)
{then}
"""


@contextmanager
def running_parent(then: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a plain script that starts a server, in a session of its own; give the server's port."""
    code = PARENT.format(then=then)
    with subprocess.Popen(  # noqa: S603 - our own code
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            yield parent, int(read_line(parent))
        finally:
            parent.kill()


def read_line(parent: subprocess.Popen[str]) -> str:
    """Return the next line that the script prints."""
    assert parent.stdout is not None
    return parent.stdout.readline().strip()


def is_free(port: int) -> bool:
    """Tell whether nothing listens on the port any more."""
    try:
        with PubSubServer(port=port, relay=True):  # the relay's error is not logged by gRPC
            return True
    except RuntimeError:
        return False


def test_it_starts_within_two_seconds() -> None:
    """Starting is quick enough to do it for single tests."""
    start = time.monotonic()
    with PubSubServer(process=True):
        assert time.monotonic() - start < 2


def test_every_method_works_in_both_modes() -> None:
    """Scripts, records and errors cross the process boundary as they are."""
    seen = []
    for process in (False, True):
        with PubSubServer(process=process, relay=True) as server, raw_client(server) as client:
            before = time.monotonic()
            server.create_topic("orders")
            server.create_subscription("shop", "orders")
            with pytest.raises(StatusError, match=r"ALREADY_EXISTS: topic .*orders"):
                server.create_topic("orders")
            with pytest.raises(StatusError, match=r"NOT_FOUND: topic .*unknown"):
                server.create_subscription("s", "unknown")
            faults = [Status("ABORTED", calls=[1]), ResetConnection(calls=[2])]
            server.set_script(FaultScript(faults=faults))
            for _ in range(2):
                with pytest.raises(grpc.RpcError):
                    client.publish(b"lost")
            wait_until(lambda: all(a.ended is not None for a in server.attempts()))
            client.publish(b"kept")
            attempts, messages = server.attempts("orders"), server.messages("orders")
            # All processes of a machine share the monotonic clock.
            assert all(before < a.arrival < time.monotonic() for a in attempts)
            server.clear()
            assert not server.attempts()
            assert not server.messages()
        seen.append(([(a.number, a.fault, a.outcome, a.code) for a in attempts], messages[0].data))
    assert seen[0] == seen[1]


def test_a_plain_script_without_guard_can_start_it() -> None:
    """The script is not run again in the child, and its end is the server's end."""
    with running_parent("") as (parent, port):
        assert parent.wait(10) == 0
        wait_until(lambda: is_free(port))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent(number: signal.Signals) -> None:
    """However the parent is ended, the server ends, too."""
    with running_parent("time.sleep(30)") as (parent, port):
        assert not is_free(port)
        parent.send_signal(number)
        assert parent.wait(10) != 0
        wait_until(lambda: is_free(port))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_it_ends_with_its_parent_when_a_fork_lives_on() -> None:
    """A forked child that holds the parent's pipes open does not keep the server alive."""
    then = """
fork = os.fork()
if fork == 0:
    os.close(1)
else:
    print(fork, flush=True)
time.sleep(30)
"""
    with running_parent(then) as (parent, port):
        fork = int(read_line(parent))
        try:
            parent.kill()
            parent.wait(10)
            wait_until(lambda: is_free(port))
        finally:
            os.kill(fork, signal.SIGKILL)


def test_an_interrupt_of_the_process_group_spares_it() -> None:
    """Ctrl-C reaches the whole group; the server serves on while its parent cleans up."""
    then = """
try:
    print("ready", flush=True)
    time.sleep(30)
except KeyboardInterrupt:
    print(server.create_topic("after"), flush=True)
"""
    with running_parent(then) as (parent, port):
        assert read_line(parent) == "ready"
        os.killpg(parent.pid, signal.SIGINT)
        assert read_line(parent) == "projects/test/topics/after"
        assert parent.wait(10) == 0
        wait_until(lambda: is_free(port))


def test_a_child_that_does_not_start_tells_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error has what the child wrote to its standard error."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.exit('no server today')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="no server today"):
        PubSubServer(process=True).start()


def test_modules_of_the_current_folder_do_not_break_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file in the current folder named like a dependency is not imported by the server."""
    (tmp_path / "proto.py").write_text("raise RuntimeError('the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    # What the interpreter puts there for a script or for -m is not what this test is about.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    with PubSubServer(process=True) as server:
        assert server.port


def test_a_dead_process_is_reported_and_can_be_replaced() -> None:
    """After a crash every use says so, a stop does not raise, and a start begins anew."""
    server = PubSubServer(process=True, auto_create_topics=True)
    server.start()
    with raw_client(server) as client:
        client.publish(b"a")
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"process has ended \(exit code: -9\)"):
            server.attempts()
    server.stop()
    with pytest.raises(RuntimeError, match="process has ended"):
        server.messages()
    with server, raw_client(server) as client:
        assert client.publish(b"a") == ["1"]


def test_a_program_ends_while_its_server_holds_calls() -> None:
    """A server in this process that is never stopped does not keep the interpreter alive."""
    code = """
import grpc, time
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall
from google.pubsub_v1 import types

server = PubSubServer(FaultScript(faults=[Stall(600)]), auto_create_topics=True)
server.start()
server.create_topic("t")
server.create_subscription("s", "t")
channel = grpc.insecure_channel(server.address)
publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish").future(
    types.PublishRequest.serialize({"topic": server.topic_path("t"), "messages": [{"data": b"x"}]})
)
pull = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(
    iter([types.StreamingPullRequest.serialize({"subscription": server.subscription_path("s")})])
)
while not server.attempts():
    time.sleep(0.01)
print("end")
"""
    run = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], timeout=20, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "end\n"
