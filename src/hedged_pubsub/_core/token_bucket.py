"""The budget of hedges: what each success earns and each hedge costs."""

from __future__ import annotations

from typing import Final

# Tokens are counted in millionths, as whole numbers: in binary floating point ten refills of 0.1
# make 0.9999…, and the tenth success would not buy its hedge.
_MICRO: Final = 1_000_000


class TokenBucket:
    """Tokens of one topic. It starts with ``initial_tokens``, of which there are none by default.

    Without a lock: whoever drives the attempt engine serialises the calls.
    """

    __slots__ = ("_capacity", "_level", "_refill")

    def __init__(self, max_tokens: int, refill_ratio: float, initial_tokens: int = 0) -> None:
        self._capacity = max_tokens * _MICRO
        self._refill = round(refill_ratio * _MICRO)
        self._level = initial_tokens * _MICRO

    @property
    def tokens(self) -> float:
        """What is left, in tokens; never below 0 and never above the maximum."""
        return self._level / _MICRO

    def take(self) -> bool:
        """Take one token if there is one; a part of a token buys nothing."""
        if self._level < _MICRO:
            return False
        self._level -= _MICRO
        return True

    def put_back(self) -> None:
        """Put a token back that was taken for a hedge that was not sent."""
        self._level = min(self._capacity, self._level + _MICRO)

    def refill(self) -> None:
        """Add what one success earns, up to the maximum."""
        self._level = min(self._capacity, self._level + self._refill)
