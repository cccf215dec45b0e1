"""``examples/smoke.py``, which is for a real topic, on Google's emulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.cloud.pubsub_v1 import PublisherClient

from tests.system.conftest import run_python

SMOKE = Path(__file__).parents[2] / "examples" / "smoke.py"


def test_smoke_comes_back_and_leaves_nothing(
    emulator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message is received, and the subscription is deleted."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator)
    with PublisherClient() as client:
        topic = client.topic_path("smoke", "orders")
        client.create_topic(name=topic)
        done = run_python(str(SMOKE), topic, "--messages", "20", timeout=60)
        assert done.returncode == 0, done.stderr
        assert "received          20" in done.stdout
        assert list(client.list_topic_subscriptions(topic=topic)) == []
