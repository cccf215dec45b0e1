"""Programs that gevent or eventlet has patched."""

from __future__ import annotations

import pytest

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer

from .conftest import clients, hedges_won, run, stall_originals

INIT = "grpc.experimental.gevent.init_gevent()"


@clients
def test_hedges_win_among_greenlets(server: PubSubServer, client: str) -> None:
    """With gRPC told of gevent, others get their turn meanwhile, and a hedge is what is waited for.

    gevent's own threads may publish as well.
    """
    stall_originals(server, client)
    (turns,), logged = run(client, "gevent_greenlets", "init")
    assert int(turns) > 0
    assert logged == ""
    assert client == "official" or hedges_won(server)


@pytest.mark.parametrize(
    ("program", "remedy"),
    [("gevent_greenlets", INIT), ("gevent_late", INIT), ("eventlet_greenlets", "Use threads")],
)
@clients
def test_where_no_hedge_can_be_sent_one_line_says_so(
    server: PubSubServer, client: str, program: str, remedy: str
) -> None:
    """Messages are stored all the same, as officially, also if gevent comes late."""
    server.set_script(FaultScript(latency=Fixed(0.3)))
    _, logged = run(client, program)
    assert {one.outcome for one in server.attempts()} == {"answered"}
    assert all(one.attempt_number in (None, 0) for one in server.attempts())
    if client == "hedged":
        (line,) = logged.splitlines()
        assert remedy in line
