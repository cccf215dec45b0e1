"""Publish hedging for Google Cloud Pub/Sub: a drop-in ``PublisherClient`` without the tail."""

from hedged_pubsub._version import __version__
from hedged_pubsub.publisher import HedgedPublisher
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import HedgingStats

__all__ = ["HedgedPublisher", "HedgingSettings", "HedgingStats", "__version__"]
