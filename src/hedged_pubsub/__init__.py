"""Publish hedging for Google Cloud Pub/Sub: a drop-in ``PublisherClient`` without the tail."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hedged_pubsub._version import __version__

if TYPE_CHECKING:
    from hedged_pubsub._core.hedge_delay import HedgeDelay
    from hedged_pubsub._core.histogram import LatencyPercentiles
    from hedged_pubsub._core.settings import HedgingSettings
    from hedged_pubsub._core.stats import HedgingStats
    from hedged_pubsub._sigterm import flush_on_sigterm
    from hedged_pubsub._sync.publisher import HedgedPublisher
    from hedged_pubsub.aio.publisher import AsyncHedgedPublisher

__all__ = [
    "AsyncHedgedPublisher",
    "HedgeDelay",
    "HedgedPublisher",
    "HedgingSettings",
    "HedgingStats",
    "LatencyPercentiles",
    "__version__",
    "flush_on_sigterm",
]


_MODULES = {
    "HedgeDelay": "_core.hedge_delay",
    "LatencyPercentiles": "_core.histogram",
    "HedgingSettings": "_core.settings",
    "HedgingStats": "_core.stats",
    "HedgedPublisher": "_sync.publisher",
    "AsyncHedgedPublisher": "aio.publisher",
    "flush_on_sigterm": "_sigterm",
}


def __getattr__(name: str) -> Any:
    """Import all of it, gRPC too, with the first name: until then the command can answer."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for public, module in _MODULES.items():
        value = getattr(import_module(f"{__name__}.{module}"), public)
        # Where users find it, which pickles name: it may move within the package.
        value.__module__ = __name__
        globals()[public] = value
    return globals()[name]


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
