"""Packets that are really lost: neither acknowledged nor refused, and sent again by the kernel.

Needs a network namespace, which takes Linux, ``unshare`` and ``ip``, and the right to make one.
Run as a program in there, this module publishes while packets of one connection are dropped, and
fails unless that settles. What is below the connection is gRPC's core with asyncio, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

import pytest

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import PubSubServer, TcpProxy

from ..conftest import ONE_MESSAGE
from .scene import MOST_CONNECTIONS, SETTINGS, Scene, connections_of, publish, settle, warm_up

pytestmark = pytest.mark.slow

# Without the right of root, a user namespace around it gives it where that is allowed.
_WAYS = (["unshare", "--net"], ["unshare", "--map-root-user", "--net"])
_NEEDED = "ip link set lo up && ip rule add pref 10 ipproto tcp sport 1 blackhole"


@cache
def in_namespace() -> list[str]:
    """Return the words before a command that run it in a new network namespace.

    Skips the test, with the reason, where that is not possible.
    """
    reasons = []
    for way in _WAYS:
        try:
            done = subprocess.run(  # noqa: S603
                [*way, "sh", "-c", _NEEDED], capture_output=True, text=True, check=False
            )
        except FileNotFoundError as error:
            reasons.append(str(error))
        else:
            if done.returncode == 0:
                return way
            reasons.append(f"{' '.join(way)}: {done.stderr.strip()}")
    pytest.skip(f"no network namespace that drops packets can be made here: {'; '.join(reasons)}")


def test_publishing_settles_while_packets_are_dropped() -> None:
    """As over a frozen connection; and when packets pass again, everything goes on."""
    program = [sys.executable, "-m", __name__]
    done = subprocess.run(  # noqa: S603
        [*in_namespace(), *program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def ip(*arguments: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *arguments], check=True)  # noqa: S603, S607


def drop_packets(action: str, port: str) -> None:
    """Drop whatever comes from or goes to a port (``add``), or do so no longer (``del``)."""
    for end in ("sport", "dport"):
        ip("rule", action, "pref", "10", "ipproto", "tcp", end, port, "blackhole")


def main() -> None:
    """Publish before and after one connection's packets are dropped."""
    ip("link", "set", "lo", "up")
    # The rule for local addresses comes first of all; what is to be dropped has to come before.
    ip("rule", "add", "pref", "100", "lookup", "local")
    ip("rule", "del", "pref", "0")
    with PubSubServer(process=True) as server, TcpProxy(server.address) as proxy:
        os.environ["PUBSUB_EMULATOR_HOST"] = proxy.address
        scene = Scene(proxy=proxy, topic=server.create_topic("orders"), server=server)
        with HedgedPublisher(ONE_MESSAGE, hedging_settings=SETTINGS) as publisher:
            warm_up(publisher, scene)
            originals, _ = connections_of(publisher, scene)
            port = originals.client_address.rpartition(":")[2]
            drop_packets("add", port)
            settle(publisher, scene, originals)
            drop_packets("del", port)
            publish(publisher, scene.topic, publishes=10, interval=0.02).all()
        assert proxy.max_open <= MOST_CONNECTIONS


if __name__ == "__main__":
    main()
