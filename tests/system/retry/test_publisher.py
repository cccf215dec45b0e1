"""The same object drives the publisher's retries, over real gRPC and in real time."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import pytest
from google.api_core import exceptions, gapic_v1
from google.cloud.pubsub_v1.types import PublisherOptions

from hedged_pubsub import HedgingSettings
from hedged_pubsub.retry import AsyncTruncatedExponentialBackoff, TruncatedExponentialBackoff
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status
from tests.system.conftest import FAST, TOPIC, Make


@pytest.mark.parametrize("hedging_settings", [FAST, None], ids=["hedging", "no hedging"])
@pytest.mark.parametrize("per_call", [False, True], ids=["options", "call"])
@pytest.mark.parametrize(
    ("kind", "strategy_class"),
    [
        ("sync", TruncatedExponentialBackoff),
        ("asyncio", TruncatedExponentialBackoff),
        ("asyncio", AsyncTruncatedExponentialBackoff),
    ],
)
def test_it_drives_the_retries(
    server: PubSubServer,
    make: Make,
    strategy_class: Any,
    per_call: bool,
    hedging_settings: HedgingSettings | None,
) -> None:
    """The original is sent again after the strategy's waits, from the options or from the call."""
    told: list[Exception] = []
    # Every wait is cut to the maximum, so that the test takes little time.
    strategy = strategy_class(maximum_backoff=0.15, deadline=5.0, on_error=told.append)
    options = {} if per_call else {"publisher_options": PublisherOptions(retry=strategy)}
    script = FaultScript(faults=[Status("UNAVAILABLE", times=2)])
    publisher = make(hedging_settings=hedging_settings, script=script, **options)
    retry = strategy if per_call else gapic_v1.method.DEFAULT
    assert publisher.publish(TOPIC, b"data", retry=retry).result(timeout=5)
    attempts = server.attempts()
    assert len(attempts) == 3
    waits = [later.arrival - earlier.arrival for earlier, later in pairwise(attempts)]
    assert all(0.15 <= wait <= 0.6 for wait in waits)
    assert [type(error) for error in told] == [exceptions.ServiceUnavailable] * 2


def test_a_hedge_saves_a_batch_whose_original_waits(server: PubSubServer, make: Make) -> None:
    """The original fails late and waits at least a second; the hedge beside it is not held up."""
    faults = [Status("UNAVAILABLE", after=0.2, attempts=[0]), Stall(0.3, attempts=[1])]
    options = PublisherOptions(retry=TruncatedExponentialBackoff())
    publisher = make(publisher_options=options, tokens=1, script=FaultScript(faults=faults))
    called = time.monotonic()
    publisher.publish(TOPIC, b"data").result(timeout=5)
    assert time.monotonic() - called < 0.9
    assert publisher.hedging_stats().hedges_won == 1
    assert [attempt.attempt_number for attempt in server.attempts()] == [0, 1]
