"""Publish hedging for Google Cloud Pub/Sub: a drop-in ``PublisherClient`` without the tail."""

import os

# gRPC reads this when it is first imported. Without it a child that is forked while a request is
# under way cannot use gRPC at all: its calls hang, whatever their timeout. Whoever sets the
# variable decides; it has no effect if gRPC was imported before.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

from hedged_pubsub._version import __version__
from hedged_pubsub.aio.publisher import AsyncHedgedPublisher
from hedged_pubsub.hedge_delay import HedgeDelay
from hedged_pubsub.histogram import LatencyPercentiles
from hedged_pubsub.publisher import HedgedPublisher
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats

__all__ = [
    "AsyncHedgedPublisher",
    "HedgeDelay",
    "HedgedPublisher",
    "HedgingSettings",
    "HedgingStats",
    "LatencyPercentiles",
    "__version__",
]
