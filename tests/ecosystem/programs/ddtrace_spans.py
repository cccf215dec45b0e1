"""A program that ddtrace traces: it patches the client's class, and gRPC's channels."""

# ruff: noqa: E402 - ddtrace patches first
import time

import ddtrace

ddtrace.patch(google_cloud_pubsub=True, grpc=True)

from client import ALONE, TOPIC, make
from ddtrace.trace import TraceFilter, tracer

spans = []


class Record(TraceFilter):
    """Keeps the spans, and sends none to an agent."""

    def process_trace(self, trace):
        """Take the spans."""
        spans.extend(trace)


tracer.configure(trace_processors=[Record()])
publisher = make(ALONE)
publisher.publish(TOPIC, b"data").result(timeout=20)
publisher.stop()
# The span ends in a done-callback, which may come after the result.
give_up = time.monotonic() + 10
while "gcp.pubsub.send" not in [span.name for span in spans]:
    assert time.monotonic() < give_up
    time.sleep(0.01)
    tracer.flush()
for span in spans:
    print(span.name, span.resource)
