"""The publisher that a program uses: the official one, or ours in its place."""

from __future__ import annotations

import os
from typing import Any

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings

TOPIC = "projects/test/topics/orders"
ALONE = BatchSettings(max_messages=1)
"""Each message is a request of its own."""
PATIENT = BatchSettings(max_latency=60)
"""Messages wait in a batch until something sends it."""

IS_HEDGED = os.environ["CLIENT"] == "hedged"


def make(settings: BatchSettings = BatchSettings()) -> Any:  # noqa: B008 - it is a tuple
    """Make the publisher that the environment names; ours has tokens, and an impatient delay."""
    if not IS_HEDGED:
        return pubsub_v1.PublisherClient(settings)
    from hedged_pubsub import HedgedPublisher, HedgingSettings

    impatient = HedgingSettings(hedge_delay=0.1, initial_tokens=10)
    return HedgedPublisher(settings, hedging_settings=impatient)
