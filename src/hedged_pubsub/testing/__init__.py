"""A real Pub/Sub gRPC server on loopback with faults on demand, for tests and demonstrations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hedged_pubsub.testing.broker import StatusError
    from hedged_pubsub.testing.faults import (
        DropReply,
        Fault,
        FaultScript,
        ResetConnection,
        Stall,
        Status,
        StoreThenStall,
        TooFewIds,
    )
    from hedged_pubsub.testing.latency import Fixed, Latency, LogNormal, Pareto
    from hedged_pubsub.testing.proxy import TcpProxy
    from hedged_pubsub.testing.proxy_connection import Direction, ProxyConnection
    from hedged_pubsub.testing.records import Attempt, StoredMessage
    from hedged_pubsub.testing.server import PubSubServer

__all__ = [
    "Attempt",
    "Direction",
    "DropReply",
    "Fault",
    "FaultScript",
    "Fixed",
    "Latency",
    "LogNormal",
    "Pareto",
    "ProxyConnection",
    "PubSubServer",
    "ResetConnection",
    "Stall",
    "Status",
    "StatusError",
    "StoreThenStall",
    "StoredMessage",
    "TcpProxy",
    "TooFewIds",
]

_MODULES = {
    "StatusError": "broker",
    "DropReply": "faults",
    "Fault": "faults",
    "FaultScript": "faults",
    "ResetConnection": "faults",
    "Stall": "faults",
    "Status": "faults",
    "StoreThenStall": "faults",
    "TooFewIds": "faults",
    "Fixed": "latency",
    "Latency": "latency",
    "LogNormal": "latency",
    "Pareto": "latency",
    "TcpProxy": "proxy",
    "Direction": "proxy_connection",
    "ProxyConnection": "proxy_connection",
    "Attempt": "records",
    "StoredMessage": "records",
    "PubSubServer": "server",
}


def __getattr__(name: str) -> Any:
    """Import what a name needs, gRPC too, when it is first used: not whenever pytest starts."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
