"""Time that passes only while the code under test sleeps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hedged_pubsub.retry import strategy


class FakeTime:
    """Stands in for ``time`` and ``asyncio`` in the retry strategy, and there alone.

    Servers and clients go on in real time; only the waits between attempts take none.

    Attributes:
        now: Monotonic seconds.
        waits: What was slept, in seconds, in order.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeTime:
        """Take effect until the end of the test."""
        monkeypatch.setattr(strategy, "time", self)
        monkeypatch.setattr(strategy, "asyncio", SimpleNamespace(sleep=self._sleep_async))
        return self

    def monotonic(self) -> float:
        """Return the fake time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        assert seconds >= 0
        self.waits.append(seconds)
        self.now += seconds

    async def _sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)
