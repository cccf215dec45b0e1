"""A program with Sentry, whose interceptor waits for each answer."""

import sentry_sdk
from client import ALONE, TOPIC, make
from sentry_sdk.integrations.grpc import GRPCIntegration

spans = []


def record(event, hint):
    """Keep the spans of a transaction, and send nothing."""
    spans.extend(span["description"] for span in event["spans"])


sentry_sdk.init(
    dsn="https://key@127.0.0.1/1",
    integrations=[GRPCIntegration()],
    default_integrations=False,
    traces_sample_rate=1.0,
    before_send_transaction=record,
)
publisher = make(ALONE)
with sentry_sdk.start_transaction(name="order"):
    publisher.publish(TOPIC, b"data").result(timeout=20)
publisher.stop()
