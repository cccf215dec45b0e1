"""What a user can set about hedging, checked when it is set."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from hedged_pubsub._core.hedge_delay import MAX_HEDGE_DELAY as MAX_HEDGE_DELAY
from hedged_pubsub._core.hedge_delay import MIN_HEDGE_DELAY as MIN_HEDGE_DELAY
from hedged_pubsub._core.hedge_delay import HedgeDelay, check_number, delay_in_seconds

MIN_TOKENS: Final = 1
MAX_TOKENS: Final = 250
MIN_REFILL_RATIO: Final = 0.001
MAX_REFILL_RATIO: Final = 0.2

_ENDPOINT: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, init=False)
class HedgingSettings:
    """When to hedge a publish, and how much extra load hedging may cause.

    The bounds are those that Google documents for publish hedging in its other clients:
    https://cloud.google.com/pubsub/docs/publish-hedging

    Args:
        hedge_delay: How long to wait for an answer before the batch is sent once more, and
            again before each further hedge. Seconds as a number, or a ``timedelta``; from 0.1
            to 10 seconds. Or a `HedgeDelay`, for one that follows the service.
        max_tokens: How many hedges can go out in a row when none is earned in between: the
            size of each topic's token bucket. A whole number from 1 to 250.
        refill_ratio: The part of a token that each successful publish request earns, from
            0.001 to 0.2. It bounds the extra requests in the long run: 0.1 means one hedge for
            every ten requests that succeed. It must exceed the share of requests slower than
            ``hedge_delay``, or the bucket runs dry and the tail comes back.
        second_connection: Whether hedges are sent on a TCP connection of their own, which is what
            helps when the first one is stuck. ``False`` sends them on the same connection.
        initial_tokens: Tokens that each topic starts with, a whole number from 0 to
            ``max_tokens``: for functions, jobs and quiet topics, which publish too little to earn
            one in time.
        max_hedges: The most hedges sent for one batch, a whole number from 1. ``None``: as many as
            tokens and the total timeout allow.
        hedge_endpoint: Where the hedges' own connection goes, as ``host`` or ``host:port`` (443 by
            default): for example the global endpoint where the client has a regional one. It is
            taken as it stands, with the client's credentials and options. ``None``: where the
            client's goes.
        observe_only: Whether hedges are only counted: none is sent, and no second connection
            opened. ``hedges_due`` then tells what hedging would do.

    The attributes are the same; ``hedge_delay`` is in seconds, or the `HedgeDelay` that was given.

    Raises:
        TypeError: If a value is not of the type named above; ``bool`` is not a number here.
        ValueError: If a value is out of its range, NaN or infinite; if ``initial_tokens`` exceeds
            ``max_tokens``; or if there is a ``hedge_endpoint`` without a second connection.

    Warns:
        UserWarning: If ``refill_ratio`` does not pay for the share of requests that a measured
            ``hedge_delay`` hedges.
    """

    hedge_delay: float | HedgeDelay = 1.0
    max_tokens: int = 50
    refill_ratio: float = 0.1
    second_connection: bool = True
    initial_tokens: int = 0
    max_hedges: int | None = None
    hedge_endpoint: str | None = None
    observe_only: bool = False

    def __init__(
        self,
        hedge_delay: float | timedelta | HedgeDelay = 1.0,
        max_tokens: int = 50,
        refill_ratio: float = 0.1,
        second_connection: bool = True,
        *,
        initial_tokens: int = 0,
        max_hedges: int | None = None,
        hedge_endpoint: str | None = None,
        observe_only: bool = False,
    ) -> None:
        # Written out, because the argument takes a timedelta and the attribute is always seconds.
        if not isinstance(hedge_delay, HedgeDelay):
            hedge_delay = delay_in_seconds("hedge_delay", hedge_delay, " or a HedgeDelay")
        kind = "a whole number"
        check_number("max_tokens", max_tokens, MIN_TOKENS, MAX_TOKENS, kind=kind, types=(int,))
        check_number("refill_ratio", refill_ratio, MIN_REFILL_RATIO, MAX_REFILL_RATIO)
        _check_flag("second_connection", second_connection)
        _check_flag("observe_only", observe_only)
        _check_whole("initial_tokens", initial_tokens, f"{kind} from 0 to max_tokens")
        if not 0 <= initial_tokens <= max_tokens:
            raise ValueError(
                f"initial_tokens ({initial_tokens}) must be from 0 to max_tokens ({max_tokens})"
            )
        if max_hedges is not None:
            _check_whole("max_hedges", max_hedges, f"{kind} from 1, or None")
            if max_hedges < 1:
                raise ValueError(f"max_hedges must be at least 1, or None; got {max_hedges!r}")
        if hedge_endpoint is not None:
            _check_endpoint(hedge_endpoint, second_connection=second_connection)
        if isinstance(hedge_delay, HedgeDelay) and not hedge_delay.is_paid_by(refill_ratio):
            share = round(1 - hedge_delay.fraction, 9)
            warnings.warn(
                f"refill_ratio ({refill_ratio}) must exceed {share:g}, the share of requests that "
                f"HedgeDelay.percentile({hedge_delay.fraction:g}) hedges, or the token bucket runs "
                "dry: raise it, or take a higher percentile",
                stacklevel=2,
            )
        object.__setattr__(self, "hedge_delay", hedge_delay)
        object.__setattr__(self, "max_tokens", max_tokens)
        object.__setattr__(self, "refill_ratio", float(refill_ratio))
        object.__setattr__(self, "second_connection", second_connection)
        object.__setattr__(self, "initial_tokens", initial_tokens)
        object.__setattr__(self, "max_hedges", max_hedges)
        object.__setattr__(self, "hedge_endpoint", hedge_endpoint)
        object.__setattr__(self, "observe_only", observe_only)

    @property
    def initial_hedge_delay(self) -> float:
        """The hedge delay in seconds before anything was measured; a fixed one is always that."""
        delay = self.hedge_delay
        return delay.initial if isinstance(delay, HedgeDelay) else delay


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {value!r}")


def _check_whole(name: str, value: object, kind: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be {kind}; got {value!r}")


def _check_endpoint(endpoint: object, *, second_connection: bool) -> None:
    if not isinstance(endpoint, str):
        raise TypeError(f"hedge_endpoint must be 'host', 'host:port' or None; got {endpoint!r}")
    if _ENDPOINT.fullmatch(endpoint) is None:
        raise ValueError(f"hedge_endpoint must be 'host' or 'host:port'; got {endpoint!r}")
    if not second_connection:
        raise ValueError(
            f"hedge_endpoint={endpoint!r} needs the hedges' own connection: leave "
            "second_connection=True, or the endpoint out"
        )
