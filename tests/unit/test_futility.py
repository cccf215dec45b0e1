"""When a warning is due: hedging is configured and cannot help. No clock, no log."""

from __future__ import annotations

from hedged_pubsub.futility import LONG_DROUGHT, MANY_BATCHES, MANY_LOSERS, QUIET, Futility
from hedged_pubsub.settings import HedgingSettings


def test_never_a_token() -> None:
    """A hundred batches that have not earned one: the ratio, and what it is, are named."""
    futility = Futility(HedgingSettings(refill_ratio=0.001))
    assert futility.suppressed(MANY_BATCHES - 1, now=0) is None
    reason = futility.suppressed(MANY_BATCHES, now=1)
    assert reason is not None
    assert "100 batches" in reason
    assert "refill_ratio (0.001)" in reason


def test_an_early_lack_of_tokens_is_no_reason() -> None:
    """A bucket starts empty: that the first hedges are suppressed is as it should be."""
    futility = Futility(HedgingSettings())
    assert not any(futility.suppressed(batches, now=0) for batches in range(MANY_BATCHES))


def test_suppressed_for_a_minute() -> None:
    """Hedges were due all along and no token was there: both settings are named."""
    futility = Futility(HedgingSettings())
    futility.sent()
    times = range(int(LONG_DROUGHT) + 1)
    reasons = [futility.suppressed(1000, now=now) for now in times]
    assert reasons[:-1] == [None] * int(LONG_DROUGHT)
    last = reasons[-1]
    assert last is not None
    assert "60 s" in last
    assert "hedge_delay (1.0)" in last
    assert "refill_ratio (0.1)" in last


def test_a_token_ends_the_drought() -> None:
    """One hedge that is sent, and the minute begins anew."""
    futility = Futility(HedgingSettings())
    futility.sent()
    for now in range(int(LONG_DROUGHT)):
        assert futility.suppressed(1000, now=now) is None
    futility.sent()
    assert futility.suppressed(1000, now=LONG_DROUGHT) is None
    assert futility.suppressed(1000, now=LONG_DROUGHT + 30) is None


def test_two_droughts_are_not_one() -> None:
    """An hour in which no hedge was due lies between them."""
    futility = Futility(HedgingSettings())
    futility.sent()
    assert futility.suppressed(1000, now=0) is None
    assert futility.suppressed(1000, now=3600) is None


def test_every_hedge_loses() -> None:
    """Twenty in a row, however they are spread over batches: the delay is named."""
    futility = Futility(HedgingSettings(hedge_delay=0.1))
    assert futility.decided(MANY_LOSERS - 1, won=False, now=0) is None
    reason = futility.decided(1, won=False, now=1)
    assert reason is not None
    assert "last 20 hedges" in reason
    assert "hedge_delay (0.1)" in reason


def test_a_winner_begins_the_count_anew() -> None:
    """A hedge that wins now and then is what hedging is for."""
    futility = Futility(HedgingSettings())
    for _ in range(10):
        assert futility.decided(MANY_LOSERS - 1, won=False, now=0) is None
        assert futility.decided(1, won=True, now=0) is None


def test_one_warning_in_ten_minutes() -> None:
    """Whatever the reasons are; after that, the same reason may be named again."""
    futility = Futility(HedgingSettings())
    assert futility.decided(MANY_LOSERS, won=False, now=0)
    assert futility.decided(MANY_LOSERS, won=False, now=1) is None
    assert futility.suppressed(1000, now=2) is None
    assert futility.decided(MANY_LOSERS, won=False, now=QUIET)
