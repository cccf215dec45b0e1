"""Where log lines are written: never where a handler that sleeps would hold up publishing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from .conftest import MakePublisher, wait_until


class SlowHandler(logging.Handler):
    """Takes its time with each line, and notes on which thread."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(1.0)
        self.lines.append((threading.current_thread().name, record.getMessage()))


@pytest.fixture
def handler(caplog: pytest.LogCaptureFixture) -> Iterator[SlowHandler]:
    """Handle what is logged about hedges."""
    handler = SlowHandler()
    logger = logging.getLogger("hedged_pubsub")
    logger.addHandler(handler)
    caplog.set_level(logging.DEBUG, logger="hedged_pubsub")
    yield handler
    logger.removeHandler(handler)


def test_a_slow_handler_holds_up_nobody(
    server: PubSubServer, topic: str, make_publisher: MakePublisher, handler: SlowHandler
) -> None:
    """The hedged message and those after it are stored while the line is still being written."""
    publisher = make_publisher(tokens=3)
    server.set_script(FaultScript(faults=[Stall(30, calls=[1])]))
    start = time.monotonic()
    publisher.publish(topic, b"hedged").result(timeout=5)
    for _ in range(20):
        publisher.publish(topic, b"data").result(timeout=5)
    assert time.monotonic() - start < 0.9
    assert not handler.lines
    wait_until(lambda: handler.lines)
    ((thread, line),) = handler.lines
    assert thread == "hedged-pubsub-worker"
    assert line.startswith(f"hedge 1 on {topic}, sent after 0.1")
