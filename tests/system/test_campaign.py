"""The fault campaign and the outage of ``benchmarks``, short: all is stored, and soon."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a benchmark; its processes find it, too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "set by the benchmark")
    return importlib.import_module


@pytest.mark.slow
@pytest.mark.parametrize("client", ["threads", "asyncio"])
def test_fault_campaign(benchmark: Any, client: str) -> None:
    """Stalls, errors, and connections that are reset, frozen and refused: all is stored, soon."""
    campaign = benchmark("fault_campaign")
    result = campaign.run(client, messages=20_000, batch=10, in_flight=20, seconds=10.0, every=1.5)
    assert (result.lost, result.pending, result.failed) == (0, 0, 0)
    assert result.duplicates <= result.possible_duplicates
    assert result.slowest < 10, "without proof it would be half a minute"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unavailable", "refused"])
@pytest.mark.parametrize("client", ["threads", "asyncio"])
def test_outage(benchmark: Any, client: str, kind: str) -> None:
    """After four seconds almost all that waited is stored within two; the official client: 24 %."""
    outage = benchmark("outage")
    result = outage.run(outage.CLIENTS[client], kind=kind, seconds=4.0, rate=50.0)
    assert result.failed == 0
    assert result.waiting > 150
    assert result.soon > 0.9
