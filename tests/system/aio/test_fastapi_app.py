"""The web application among the examples, served to clients at the same time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Status

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")

EXAMPLE = Path(__file__).parents[3] / "examples" / "fastapi_app.py"


@pytest.fixture
def application(topic: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the example."""
    monkeypatch.setenv("TOPIC", topic)
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def client(application: Any) -> Any:
    """Return a client that sends requests straight to the application."""
    transport = httpx.ASGITransport(application.app)
    return httpx.AsyncClient(transport=transport, base_url="http://app")


async def test_the_end_of_the_lifespan_sends_what_is_left(
    server: PubSubServer, application: Any
) -> None:
    """Views that nobody waited for are stored before the application is gone."""
    server.set_script(FaultScript(latency=Fixed(0.1)))
    async with application.lifespan(application.app), client(application) as http:
        answer = await http.post("/views/7")
        assert answer.status_code == 202
    assert [message.data for message in server.messages()] == [b"view 7"]


async def test_a_view_that_is_lost_is_logged(
    server: PubSubServer, application: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is the application's to log; asyncio does not report it as forgotten."""
    server.set_script(FaultScript(faults=[Status("PERMISSION_DENIED")]))
    async with application.lifespan(application.app), client(application) as http:
        await http.post("/views/7")
    assert "a view was lost: 403" in capsys.readouterr().out
