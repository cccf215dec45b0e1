"""The token bucket: exact to the token (R9)."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from hedged_pubsub._core.token_bucket import TokenBucket


@example(max_tokens=250, micro_ratio=1_000, refills=[999, -1, 1, -1])
@example(max_tokens=250, micro_ratio=100_000, refills=[9, -1, 1, -1])
@given(
    max_tokens=st.integers(1, 250),
    micro_ratio=st.integers(1_000, 200_000),
    refills=st.lists(st.integers(-20, 300), max_size=30),
)
def test_it_counts_exactly(max_tokens: int, micro_ratio: int, refills: list[int]) -> None:
    """Refills, and takes where negative, give what integers give, never above the most."""
    bucket = TokenBucket(max_tokens, micro_ratio / 1_000_000)
    level = 0  # in millionths
    for count in refills:
        for _ in range(count):
            bucket.refill()
            level = min(level + micro_ratio, max_tokens * 1_000_000)
        for _ in range(-count):
            assert bucket.take() == (level >= 1_000_000)
            level -= 1_000_000 * (level >= 1_000_000)
        assert bucket.tokens == level / 1_000_000
