"""A real Pub/Sub gRPC server on loopback with faults on demand, for tests and demonstrations."""

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
