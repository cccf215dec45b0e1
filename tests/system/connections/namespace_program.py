"""Publishes in a network namespace of its own while packets of one connection are dropped.

Run as ``python -m tests.system.connections.namespace_program sync|asyncio`` in a new namespace;
prints the latencies in seconds and the largest number of connections, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import PubSubServer, TcpProxy

from ..aio.blocking import BlockingPublisher, LoopThread
from ..conftest import ONE_MESSAGE
from .scene import SETTINGS, Scene, connections_of, publish, warm_up


def ip(*arguments: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *arguments], check=True)  # noqa: S603, S607


def drop_packets(action: str, port: str) -> None:
    """Drop whatever comes from or goes to a port (``add``), or do so no longer (``del``)."""
    for end in ("sport", "dport"):
        ip("rule", action, "pref", "10", "ipproto", "tcp", end, port, "blackhole")


def main(kind: str) -> None:
    """Publish before and after one connection's packets are dropped."""
    ip("link", "set", "lo", "up")
    # The rule for local addresses comes first of all; what is to be dropped has to come before.
    ip("rule", "add", "pref", "100", "lookup", "local")
    ip("rule", "del", "pref", "0")
    with ExitStack() as stack:
        server = stack.enter_context(PubSubServer(process=True))
        proxy = stack.enter_context(TcpProxy(server.address))
        os.environ["PUBSUB_EMULATOR_HOST"] = proxy.address
        scene = Scene(proxy=proxy, topic=server.create_topic("orders"), server=server)
        arguments: dict[str, Any] = {"batch_settings": ONE_MESSAGE, "hedging_settings": SETTINGS}
        publisher: Any
        if kind == "sync":
            publisher = HedgedPublisher(**arguments)
        else:
            publisher = BlockingPublisher(stack.enter_context(LoopThread()), **arguments)
        stack.callback(publisher.close, timeout=10)
        warm_up(publisher, scene)
        originals, _ = connections_of(publisher, scene)
        port = originals.client_address.rpartition(":")[2]
        drop_packets("add", port)
        latencies = publish(publisher, scene.topic).all()
        drop_packets("del", port)
        after = publish(publisher, scene.topic, publishes=10).all()
        print(json.dumps({"dropped": latencies, "after": after, "max_open": proxy.max_open}))


if __name__ == "__main__":
    main(sys.argv[1])
