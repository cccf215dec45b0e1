"""The test server where OpenTelemetry instruments gRPC's servers: its publishes go on."""

from client import ALONE, TOPIC, make
from opentelemetry.instrumentation.grpc import GrpcInstrumentorServer

GrpcInstrumentorServer().instrument()

from hedged_pubsub.testing import PubSubServer  # noqa: E402 - what comes later is instrumented

with PubSubServer(set_emulator_host=True) as server:
    server.create_topic(TOPIC)
    publisher = make(ALONE)
    publisher.publish(TOPIC, b"data").result(timeout=10)
    publisher.stop()
    print(len(server.messages()))
