"""The metrics of the asyncio publisher, by the tests of the synchronous one."""

from __future__ import annotations

import sys
from types import FrameType

from opentelemetry import metrics

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from .. import test_metrics as shared
from ..test_metrics import page as page
from .publishers import publishing

test_what_is_scraped = shared.test_what_is_scraped_is_what_was_counted_and_what_the_server_saw
test_a_closed_publisher_is_counted_on = shared.test_a_closed_publisher_is_counted_on


class OpenTelemetryCalls:
    """Counts calls of OpenTelemetry's functions; for ``setprofile``."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        self.count += event == "call" and "opentelemetry" in frame.f_code.co_filename


async def test_without_a_meter_provider_nothing_is_called(server: PubSubServer, topic: str) -> None:
    """Neither for a message nor for a hedge; there is but one thread."""
    calls = OpenTelemetryCalls()
    script = FaultScript(faults=[Stall(30, calls=[150])])
    async with publishing(server, tokens=3, script=script) as publisher:
        before = publisher.hedging_stats().hedges_won
        sys.setprofile(calls)
        try:
            metrics.get_meter_provider()
            assert calls.count == 1, "they are counted"
            for _ in range(200):
                await publisher.publish(topic, b"data")
        finally:
            sys.setprofile(None)
        assert publisher.hedging_stats().hedges_won > before
    assert calls.count == 1
