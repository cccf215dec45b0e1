"""A gevent program: greenlets publish, and others go on meanwhile; with ``init``, gRPC knows."""

# ruff: noqa: F401 - gevent patches first
import sys

if "init" in sys.argv:
    import gevent_told
else:
    from gevent import monkey

    monkey.patch_all()

import logging

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
    """Publish a message, and wait for it."""
    publisher.publish(TOPIC, b"data").result(timeout=20)


gevent.spawn(take_turns)
greenlets = [gevent.spawn(publish) for _ in range(3)]
gevent.joinall(greenlets, raise_error=True)
print(turns)
if IS_HEDGED:  # from native threads as well, those of gevent's pool; officially that can hang
    gevent.get_hub().threadpool.map(lambda _: publish(), range(3))
publisher.stop()
