"""A publisher that is dropped without ``close()``: its messages are sent, and nothing is left."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

from hedged_pubsub.testing import PubSubServer

from .conftest import run_python
from .interruptions.program import GRPC_FORKS
from .programs import run, run_program
from .tls_server import Authority, tls_server
from .tls_server import authority as authority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is open is read from /proc")

lets_go = pytest.mark.skipif(
    not GRPC_FORKS,
    reason="older releases of gRPC keep the sockets of some channels that nobody has any more",
)

_COUNTS = """
    import asyncio, json
    from google.auth.credentials import AnonymousCredentials
    from google.pubsub_v1 import PublisherAsyncClient, PubsubMessage

    def sockets():
        found = 0
        for one in os.listdir("/proc/self/fd"):
            try:
                found += os.readlink(f"/proc/self/fd/{one}").startswith("socket:")
            except OSError:  # that of the listing
                pass
        return found

    def wait_until_there_are(count):
        give_up = time.monotonic() + 5
        while sockets() > count:
            assert time.monotonic() < give_up, f"{sockets()} sockets instead of {count}"
            time.sleep(0.01)
"""


@lets_go
def test_what_was_accepted_is_sent_and_no_socket_is_left(server: PubSubServer) -> None:
    """However it is dropped: forgotten, in a cycle, with an exception, or stopped as officially."""
    run(
        _COUNTS
        + """
    def made(data):
        publisher = HedgedPublisher(settings(max_latency=60))
        publisher.publish(topic, data)
        return publisher

    def forget():
        made(b"forgotten")

    def let_go_in_a_cycle():
        publisher = made(b"in a cycle")
        publisher.itself = publisher
        del publisher
        gc.collect()

    def raise_an_error():
        try:
            publisher = made(b"with an exception")
            raise ValueError
        except ValueError:
            pass

    def stop():
        publisher = HedgedPublisher(settings(max_latency=60))
        future = publisher.publish(topic, b"stopped")
        publisher.stop()
        future.result(timeout=10)
        publisher.transport.close()
        kept.append(publisher)

    gc.disable()
    kept = []
    for drop in (forget, let_go_in_a_cycle, raise_an_error, stop):
        for _ in range(3):
            drop()
        wait_until_there_are(0)
    """
    )
    data = sorted({message.data for message in server.messages()})
    assert data == [b"forgotten", b"in a cycle", b"stopped", b"with an exception"]
    assert len(server.messages()) == 12


@lets_go
def test_what_an_asyncio_publisher_accepted_is_sent_and_no_socket_is_left(
    server: PubSubServer,
) -> None:
    """However it is dropped; after its loop was closed, too, though nothing is sent then."""
    run(
        _COUNTS
        + """
    async def made(data):
        publisher = AsyncHedgedPublisher(settings(max_latency=60))
        accepted.append(await publisher.enqueue(topic, data))
        return publisher

    async def forget():
        await made(b"forgotten")

    async def let_go_in_a_cycle():
        publisher = await made(b"in a cycle")
        publisher.itself = publisher
        del publisher
        await asyncio.sleep(0)  # the loop holds a publisher until the turn that it is used in ends
        await asyncio.to_thread(gc.collect)

    async def raise_an_error():
        try:
            publisher = await made(b"with an exception")
            raise ValueError
        except ValueError:
            pass

    async def main():
        before = sockets()
        for drop in (forget, let_go_in_a_cycle, raise_an_error):
            for _ in range(3):
                await drop()
            await asyncio.wait_for(asyncio.gather(*accepted), 10)
            give_up = time.monotonic() + 5
            while sockets() > before:
                assert time.monotonic() < give_up, (drop, before, sockets())
                await asyncio.sleep(0.01)

    async def publish_and_keep():
        publisher = AsyncHedgedPublisher()
        await publisher.publish(topic, b"before the loop is closed")
        return publisher

    gc.disable()
    accepted = []
    before = sockets()
    asyncio.run(main())
    wait_until_there_are(before)
    publisher = asyncio.run(publish_and_keep())
    del publisher
    wait_until_there_are(before)
    """
    )
    data = [message.data for message in server.messages()]
    assert len(data) == 10
    assert len(set(data)) == 4


@lets_go
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_many_cost_at_most_twice_what_the_official_clients_do(
    server: PubSubServer, authority: Authority, tmp_path: pathlib.Path, kind: str, secure: bool
) -> None:
    """Made, used once and dropped: in sockets, threads and memory, of the same program."""
    roots = tmp_path / "roots.pem"
    roots.write_bytes(authority.root)
    used = {}
    with tls_server(server.address, authority) as address:
        for client in ("official", "hedged"):
            environment = {"KIND": f"{client} {kind}", "COUNT": "100"}
            if secure:
                environment["PUBSUB_EMULATOR_HOST"] = ""
                environment["ADDRESS"] = address
                environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(roots)
            process = run_program(_COUNTS + _MANY, hangs=40, **environment)
            assert process.returncode == 0, process.stderr
            used[client] = json.loads(process.stdout)
    for name, official in used["official"].items():
        assert used["hedged"][name] <= 2 * max(official, 1), used


_MANY = """
    client, kind = os.environ["KIND"].split()
    options = {"credentials": AnonymousCredentials()}
    if "ADDRESS" in os.environ:
        options["client_options"] = {"api_endpoint": os.environ["ADDRESS"]}

    def publish():
        Publisher = HedgedPublisher if client == "hedged" else pubsub_v1.PublisherClient
        Publisher(**options).publish(topic, b"data").result(timeout=20)

    async def publish_on_the_loop():
        if client == "hedged":
            await AsyncHedgedPublisher(**options).publish(topic, b"data")
        else:
            await PublisherAsyncClient(**options).publish(
                topic=topic, messages=[PubsubMessage(data=b"data")]
            )

    async def publish_all():
        for _ in range(count):
            await publish_on_the_loop()

    count = int(os.environ["COUNT"])
    if kind == "asyncio":
        asyncio.run(publish_all())
    else:
        for _ in range(count):
            publish()
    gc.collect()
    give_up = time.monotonic() + 10
    while sockets() and time.monotonic() < give_up:  # gRPC and our workers take their time
        time.sleep(0.1)
    time.sleep(1)  # so do gRPC's idle threads
    # The library's thread and its workers are the process's, not a publisher's.
    ours = sum(thread.name.startswith("hedged-pubsub") for thread in threading.enumerate())
    threads = len(os.listdir("/proc/self/task")) - ours
    with open("/proc/self/statm") as statm:
        memory = int(statm.read().split()[1])
    print(json.dumps({"sockets": sockets(), "threads": threads, "memory": memory}))
"""


def test_an_import_changes_nothing_for_others() -> None:
    """No environment variable is set; with gRPC's for forks it would keep everybody's channels."""
    code = "import os; before = dict(os.environ); from hedged_pubsub import HedgedPublisher; "
    process = run_python("-c", code + "assert dict(os.environ) == before", timeout=60)
    assert process.returncode == 0, process.stderr
