"""A program that eventlet has patched."""

# ruff: noqa: E402 - eventlet patches first
import eventlet

eventlet.monkey_patch()

import logging

from client import ALONE, TOPIC, make

logging.basicConfig(format="%(message)s")
publisher = make(ALONE)
for _ in range(3):
    publisher.publish(TOPIC, b"data").result(timeout=20)
publisher.stop()
