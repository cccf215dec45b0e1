"""Which settings are worth a try, which of them is best, and what to be wary of."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from hedged_pubsub._core.hedge_delay import MAX_HEDGE_DELAY, MIN_HEDGE_DELAY, HedgeDelay
from hedged_pubsub._core.settings import MAX_REFILL_RATIO, HedgingSettings
from hedged_pubsub.cli.measures import nearest_rank
from hedged_pubsub.cli.plan.simulation import Prediction, Trace, predict

# Steps that a reader would try by hand, from bound to bound.
_DELAYS: Final = (MIN_HEDGE_DELAY, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, MAX_HEDGE_DELAY)
# And the percentiles at which a delay is commonly set, in ten-thousandths.
_DELAY_PERCENTILES: Final = (9_000, 9_500, 9_900)
REFILL_RATIOS: Final = (0.01, 0.02, 0.05, 0.1, 0.2)

_P99_9: Final = 9_990
_P99_99: Final = 9_999

# What two replays differ by for no reason that would come again.
_AS_GOOD: Final = 1.02
# Below this share of what it was, the tail has become shorter.
_HELPS: Final = 0.9
# A percentile that rests on fewer samples than these is luck.
_FIRM: Final = 10
# When half of the slow requests follow a slow one, and there are enough to tell.
_BURSTS: Final = 0.5
_ENOUGH_SLOW: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Predictions by delay and rising ratio; the best of them if it beats no hedging, and why."""

    predictions: tuple[Prediction, ...]
    recommended: Prediction | None
    reason: str
    warnings: tuple[str, ...]


def choose_delays(trace: Trace) -> tuple[float, ...]:
    """Return delays, in rising order, that some requests exceed, but no more than can be hedged."""
    percentiles = (_rounded_up(nearest_rank(trace.recorded, parts)) for parts in _DELAY_PERCENTILES)
    return tuple(
        delay
        for delay in sorted({*_DELAYS, *percentiles})
        if MIN_HEDGE_DELAY <= delay <= MAX_HEDGE_DELAY
        and 0 < _share_slower(trace, delay) < MAX_REFILL_RATIO
    )


def predict_all(
    trace: Trace,
    *,
    delays: Sequence[float | HedgeDelay],
    refill_ratios: Sequence[float],
    max_tokens: int,
    tick: Callable[[], object],
) -> tuple[Prediction, ...]:
    """Replay the trace with each delay and each ratio; call ``tick`` after each."""
    predictions = []
    for delay in delays:
        last: Prediction | None = None
        for ratio in sorted(refill_ratios):
            settings = HedgingSettings(delay, max_tokens, ratio)
            # Once no hedge is suppressed, more tokens change nothing.
            if last is None or last.suppressed:
                last = predict(trace, settings)
            predictions.append(dataclasses.replace(last, settings=settings))
            tick()
    return tuple(predictions)


def make_plan(
    trace: Trace, predictions: tuple[Prediction, ...], *, budget: float, in_order: bool
) -> Plan:
    """Choose a setting; ``in_order`` tells whether the trace has the requests' own order."""
    recommended, reason = _choose(trace, predictions, budget)
    return Plan(
        predictions=predictions,
        recommended=recommended,
        reason=reason,
        warnings=tuple(_warnings(trace, predictions, recommended, in_order=in_order)),
    )


def _choose(
    trace: Trace, predictions: tuple[Prediction, ...], budget: float
) -> tuple[Prediction | None, str]:
    """Return the setting with the lowest p99.9 that the budget allows, if any helps, and why."""
    if not predictions:
        return None, _no_delay(trace)
    affordable = [one for one in predictions if one.extra_requests <= budget]
    if not affordable:
        least = min(predictions, key=lambda one: one.extra_requests)
        return None, (
            f"No setting keeps within {percent(budget)} extra requests; the fewest are"
            f" {percent(least.extra_requests)}, with {in_words(least.settings)}."
        )
    # Else the bucket is empty in the long run, though perhaps not in a short trace.
    lasting = [one for one in affordable if one.settings.refill_ratio > one.slower > 0]
    if not lasting:
        return None, (
            "No refill ratio exceeds the share of requests slower than the delay, as it must, or"
            " no request is slower: with these settings hedging cannot help."
        )
    # A ratio just above the share of slow requests lets the bucket run out now and then, which
    # the p99.99 shows. Among equals, the setting that sends least, and could send least.
    best = _as_good_as_the_best(_as_good_as_the_best(lasting, _P99_9), _P99_99)
    chosen = min(best, key=lambda one: (round(one.extra_requests, 4), one.settings.refill_ratio))
    before, after = (nearest_rank(one, _P99_9) for one in (trace.recorded, chosen.latencies))
    if after > _HELPS * before:
        return None, (
            f"Hedging cannot help: within {percent(budget)} extra requests the p99.9 goes from"
            f" {short_milliseconds(before)} ms to {short_milliseconds(after)} ms at best."
        )
    return chosen, _why(chosen, before, budget)


def _as_good_as_the_best(predictions: Sequence[Prediction], parts: int) -> list[Prediction]:
    """Return those whose percentile is the lowest, or next to it."""
    lowest = min(nearest_rank(one.latencies, parts) for one in predictions)
    return [one for one in predictions if nearest_rank(one.latencies, parts) <= _AS_GOOD * lowest]


def in_words(settings: HedgingSettings) -> str:
    """Return a setting as the arguments to ``HedgingSettings``."""
    delay = settings.hedge_delay
    if isinstance(delay, HedgeDelay):
        words = f"HedgeDelay.percentile({delay.fraction:g})"
    else:
        words = f"{delay:g}"
    words = f"hedge_delay={words}, refill_ratio={settings.refill_ratio:g}"
    if settings.max_tokens != HedgingSettings().max_tokens:
        words += f", max_tokens={settings.max_tokens}"
    return words


def percent(share: float) -> str:
    """Return a share in percent, to two significant digits below ten."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def short_milliseconds(seconds: float) -> str:
    """Return a time in milliseconds without the unit, to what anybody reads of it."""
    return f"{1000 * seconds:.1f}" if seconds < 0.01 else f"{1000 * seconds:.0f}"


def _why(recommended: Prediction, before: float, budget: float) -> str:
    settings = recommended.settings
    delay = "a measured delay" if isinstance(settings.hedge_delay, HedgeDelay) else "the delay"
    return (
        f"Recommended: HedgingSettings({in_words(settings)}). It has the lowest p99.9"
        f" ({short_milliseconds(nearest_rank(recommended.latencies, _P99_9))} ms;"
        f" {short_milliseconds(before)} ms without hedging) within {percent(budget)} extra requests"
        f" ({percent(recommended.extra_requests)}). {percent(recommended.slower)} of the requests"
        f" are slower than {delay}, and the refill ratio exceeds that; in an outage it bounds the"
        f" extra requests to {percent(settings.refill_ratio)} of those that succeed, beyond the"
        f" {settings.max_tokens} tokens that were saved before."
    )


def _no_delay(trace: Trace) -> str:
    if nearest_rank(trace.recorded, 10_000) <= MIN_HEDGE_DELAY:
        return (
            f"Hedging cannot help: no request took longer than {MIN_HEDGE_DELAY:g} s, which is the"
            " shortest hedge delay."
        )
    if (slow := _share_slower(trace, MAX_HEDGE_DELAY)) >= MAX_REFILL_RATIO:
        return (
            f"Hedging cannot help: {percent(slow)} of the requests took longer than"
            f" {MAX_HEDGE_DELAY:g} s, the longest hedge delay. The service is slow as a whole; it"
            " has no tail to cut off."
        )
    return (
        "Hedging cannot help: the requests differ so little that no hedge delay tells a tail from"
        " the rest. Either so many are slower that no refill ratio pays for it, or none is."
    )


def _warnings(
    trace: Trace,
    predictions: tuple[Prediction, ...],
    recommended: Prediction | None,
    *,
    in_order: bool,
) -> list[str]:
    warnings = []
    slow = _share_slower(trace, MIN_HEDGE_DELAY)
    if slow > MAX_REFILL_RATIO:
        warnings.append(
            f"{percent(slow)} of the requests took longer than {MIN_HEDGE_DELAY:g} s: much of the"
            " service is slow, not its tail alone. A delay that so many exceed is not affordable:"
            f" no refill ratio is above {MAX_REFILL_RATIO:g}."
        )
    if len(trace) * (10_000 - _P99_9) < _FIRM * 10_000:
        beyond = math.ceil(len(trace) * (10_000 - _P99_9) / 10_000)
        rest = "slowest one" if beyond == 1 else f"{beyond} slowest"
        warnings.append(
            f"The p99.9 rests on the {rest} of {len(trace):,} requests; record 10,000 or more for"
            " numbers that hold, and ten times as many for the p99.99."
        )
    chosen = recommended or (predictions[0] if predictions else None)
    if in_order and chosen is not None and _comes_in_bursts(trace, chosen):
        warnings.append(
            "Slow requests come in bursts: most follow right upon another one. A hedge that is"
            " sent in a burst may be slow as well, but takes any of the recorded latencies here:"
            " expect less than what is predicted."
        )
    return warnings


def _comes_in_bursts(trace: Trace, prediction: Prediction) -> bool:
    numbers = trace.slower_than(prediction.settings.initial_hedge_delay)
    after_another = sum(second == first + 1 for first, second in pairwise(numbers))
    return len(numbers) >= _ENOUGH_SLOW and after_another > max(
        _BURSTS, 2 * len(numbers) / len(trace)
    ) * len(numbers)


def _share_slower(trace: Trace, delay: float) -> float:
    return 1 - bisect_right(trace.recorded, delay) / len(trace)


def _rounded_up(seconds: float) -> float:
    """Round up to two significant digits, as people write a delay."""
    if seconds <= 0:
        return 0.0
    digits = 1 - math.floor(math.log10(seconds))
    return round(math.ceil(seconds * 10.0**digits - 1e-9) / 10.0**digits, 6)
