"""Programs that are traced, by what patches the client, its channels, or its server."""

from __future__ import annotations

import pytest

from hedged_pubsub.testing import PubSubServer

from .conftest import clients, hedges_won, run, stall_originals


@clients
def test_ddtrace(server: PubSubServer, client: str) -> None:
    """The publish is a span, and what the tracer adds is in the message; each request is one."""
    stall_originals(server, client)
    lines, _ = run(client, "ddtrace_spans")
    assert lines.count("gcp.pubsub.send orders") == 1
    assert lines.count("grpc /google.pubsub.v1.Publisher/Publish") == len(server.attempts())
    (message,) = {(one.data, one.attributes) for one in server.messages()}
    assert "x-datadog-trace-id" in dict(message[1])
    assert client == "official" or hedges_won(server)


@pytest.mark.parametrize("api", ["threads", "asyncio"])
@clients
def test_sentry(server: PubSubServer, client: str, api: str) -> None:
    """Its interceptor waits for each answer; a hedge is sent all the same, the loser cancelled."""
    stall_originals(server, client)
    run(client, "sentry_spans", api)
    assert client == "official" or hedges_won(server)
    assert all("sentry-trace" in dict(one.metadata) for one in server.attempts())


@clients
def test_opentelemetrys_server_instrumentation(client: str) -> None:
    """The test server takes publishes where gRPC's servers are instrumented."""
    lines, _ = run(client, "otel_server")
    assert lines == ["1"]
