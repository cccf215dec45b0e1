"""A gevent program: greenlets publish, and others go on meanwhile; with ``init``, gRPC knows."""

# ruff: noqa: E402 - gevent patches first
from gevent import monkey

monkey.patch_all()

import sys

if "init" in sys.argv:
    import grpc.experimental.gevent

    grpc.experimental.gevent.init_gevent()

import logging
import time

import gevent
from client import ALONE, IS_HEDGED, TOPIC, make

logging.basicConfig(format="%(message)s")
publisher = make(ALONE)
turns = 0


def take_turns():
    """Count how often this greenlet gets a turn."""
    global turns
    while True:
        gevent.sleep(0.01)
        turns += 1


def publish():
    """Publish a message, and return how long it took."""
    start = time.monotonic()
    publisher.publish(TOPIC, b"data").result(timeout=20)
    return time.monotonic() - start


gevent.spawn(take_turns)
greenlets = [gevent.spawn(publish) for _ in range(3)]
gevent.joinall(greenlets, raise_error=True)
print(max(greenlet.value for greenlet in greenlets), turns)
if IS_HEDGED:  # from native threads as well, those of gevent's pool; officially that can hang
    gevent.get_hub().threadpool.map(lambda _: publish(), range(3))
publisher.stop()
