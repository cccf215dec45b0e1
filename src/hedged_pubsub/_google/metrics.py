"""OpenTelemetry metrics of all publishers of the process.

Counters and the gauge are read from the publishers' numbers when a reader collects. Only the
durations of batches are noted as they happen, for publishers that were made when a meter provider
was set, and recorded in bulk, on a thread that may run a user's code. Names, units and attributes
follow the semantic conventions for messaging; what those do not have begins with ``hedged_pubsub``.

The first topics that are seen are told apart, up to a bound. All others are one series, with the
attribute that OpenTelemetry's SDK has for what exceeds its own.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

from hedged_pubsub._core import log
from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.recent_topics import MAX_TOPICS
from hedged_pubsub._core.stats import COUNTS
from hedged_pubsub._core.topic_state import Durations, TopicState
from hedged_pubsub._version import __version__

DURATION: Final = "messaging.client.operation.duration"
TOKENS: Final = "hedged_pubsub.tokens.left"
DELAY: Final = "hedged_pubsub.hedge.delay"
WAITING: Final = "hedged_pubsub.messages.waiting"
OLDEST: Final = "hedged_pubsub.messages.oldest_age"
BLOCKED: Final = "hedged_pubsub.publishes.blocked"
OVERFLOW: Final = "otel.metric.overflow"

# What the conventions advise for this histogram, in seconds.
_BOUNDARIES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_MANY: Final = 128
"""Durations to record at once: it takes less than a switch of threads, and few are made."""


class Counter(NamedTuple):
    """How a number of the statistics is exported."""

    name: str
    unit: str
    description: str


COUNTERS: Final[Mapping[str, Counter]] = {
    "batches": Counter("hedged_pubsub.batches.committed", "{batch}", "Batches committed."),
    "batches_failed": Counter(
        "hedged_pubsub.batches.failed", "{batch}", "Batches that were given up."
    ),
    "attempts": Counter(
        "hedged_pubsub.attempts.sent",
        "{attempt}",
        "Publish requests sent: originals, their retries, and hedges.",
    ),
    "attempts_cancelled": Counter(
        "hedged_pubsub.attempts.cancelled",
        "{attempt}",
        "Publish requests cancelled because another one had decided the batch.",
    ),
    "hedges_due": Counter(
        "hedged_pubsub.hedges.due",
        "{hedge}",
        "Hedges wanted: sent, suppressed for lack of a token, or only observed.",
    ),
    "hedges_sent": Counter("hedged_pubsub.hedges.sent", "{hedge}", "Hedges sent."),
    "hedges_won": Counter(
        "hedged_pubsub.hedges.won", "{hedge}", "Hedges that were answered first."
    ),
    "hedges_suppressed": Counter(
        "hedged_pubsub.hedges.suppressed",
        "{hedge}",
        "Hedges that were due when no token was left for them.",
    ),
    "possible_duplicates": Counter(
        "hedged_pubsub.duplicates.possible",
        "{attempt}",
        "Publish requests that may have stored a batch once more.",
    ),
}
"""Each number of ``HedgingStats`` that only grows."""


class Waits(Protocol):
    """What waits in a publisher, read when a reader collects.

    Attributes:
        undecided: The batches that have messages without an outcome.
        blocked: How many calls of ``publish()`` wait for flow control.
    """

    undecided: set[Any]

    @property
    def blocked(self) -> int: ...


_Topics = dict[str, TopicState]
_Attributes = Mapping[str, str | bool]

_OTHERS: Final = ""
"""Stands for the topics beyond the bound."""


class Metrics:
    """The metrics of one process; publishers of one topic add up."""

    def __init__(
        self, get_meter_provider: Callable[[], MeterProvider] = metrics.get_meter_provider
    ) -> None:
        self._get_meter_provider = get_meter_provider
        self._keys = itertools.count()
        self._live: dict[int, _Topics] = {}
        self._waits: weakref.WeakSet[Waits] = weakref.WeakSet()
        self._histogram: Histogram | None = None
        self._registered = False
        # Reentrant, for a signal handler that makes a publisher while one is made.
        self._lock = threading.RLock()
        self._dropped: collections.deque[int] = collections.deque()
        # What publishers that are gone had counted: a counter never falls.
        self._kept: dict[str, dict[str, int]] = {}
        # The topics that are told apart.
        self._series: set[str] = set()
        self._durations: collections.deque[tuple[str, str, str, float]] = collections.deque()

    def reset_after_fork(self) -> None:
        """Start from zero in a child: what the parent has counted is the parent's."""
        self._lock = threading.RLock()
        self._kept.clear()
        self._series.clear()
        self._durations.clear()
        for topics in self._live.values():
            topics.clear()

    def watch(self, owner: object, topics: _Topics, waits: Waits | None = None) -> Durations | None:
        """Export what is counted in ``topics`` of a publisher whose driver is ``owner``, and waits.

        Return where to note what its batches take; ``None`` without a meter provider.
        """
        with self._lock:
            self._fold_dropped()
            key = next(self._keys)
            self._live[key] = topics
            if waits is not None:
                self._waits.add(waits)
            register, self._registered = not self._registered, True
        # A garbage collection may call this anywhere, in ``self._lock`` too: it only takes note.
        weakref.finalize(owner, self._dropped.append, key).atexit = False
        try:
            provider = self._get_meter_provider()
            if register:
                self._register(provider.get_meter("hedged_pubsub", __version__))
        except Exception as error:  # noqa: BLE001 - the meter provider is the user's
            log.write(logging.ERROR, "metrics are not exported; publishing goes on", error=error)
            return None
        return self if _is_real(provider) else None

    def add(self, topic: str, outcome: str, error: str, seconds: float) -> bool:
        """Note what a batch took, without calling anybody; see ``topic_state.Durations``."""
        self._durations.append((topic, outcome, error, seconds))
        return len(self._durations) % _MANY == 0

    def record(self) -> None:
        """Record what was noted. Runs a user's code: that of the meter provider."""
        histogram, durations = self._histogram, self._durations
        if histogram is None:  # the meter provider failed to make it
            durations.clear()
            return
        try:
            while durations:
                topic, outcome, error, seconds = durations.popleft()
                series = self._series_of(topic)
                histogram.record(seconds, _duration_attributes(series, outcome, error))
        except IndexError:  # another thread records, too, and was faster
            return
        except Exception as error:  # noqa: BLE001 - the meter provider is the user's
            durations.clear()
            text = "durations could not be recorded; publishing goes on"
            log.write(logging.ERROR, text, error=error)

    def _register(self, meter: Meter) -> None:
        """Make the instruments, once a process; they work as soon as a meter provider is set."""
        for count, (name, unit, description) in COUNTERS.items():
            observe = functools.partial(self._observe, count)
            meter.create_observable_counter(name, [observe], unit, description)
        observe = functools.partial(self._observe, "tokens")
        text = "Tokens left: hedges that can be sent now."
        meter.create_observable_gauge(TOKENS, [observe], "{token}", text)
        for name, look, unit, text in (
            (DELAY, self._delays, "s", "The hedge delay of the topic's next batch."),
            (WAITING, self._waiting, "{message}", "Messages accepted and not decided yet."),
            (OLDEST, self._ages, "s", "How long ago the oldest of these was published."),
            (BLOCKED, self._blocked, "{publish}", "Calls of publish() that flow control blocks."),
        ):
            meter.create_observable_gauge(name, [look], unit, text)
        advice: dict[str, Any] = {"explicit_bucket_boundaries_advisory": _BOUNDARIES}
        # Not in the oldest supported API. There, a view has to set them.
        if advice.keys() - inspect.signature(meter.create_histogram).parameters.keys():
            advice = {}
        text = (
            "What batches took from their commit to the answer that decided them, or to the error "
            "that ended them."
        )
        self._histogram = meter.create_histogram(DURATION, "s", text, **advice)

    def _observe(self, number: str, _options: CallbackOptions) -> Iterable[Observation]:
        """Add up a number of each topic, of all publishers."""
        if number == COUNTS[0]:
            # Once a collection, so that it finds the durations of all that it counts.
            self.record()
        totals: dict[str, float] = {}
        with self._lock:
            states = self._states()
            if number in COUNTERS:  # tokens are gone with their publisher
                totals = {series: kept[number] for series, kept in self._kept.items()}
        for series, state in states:
            totals[series] = totals.get(series, 0) + getattr(state, number)
        return [Observation(total, _attributes(series)) for series, total in totals.items()]

    def _delays(self, _options: CallbackOptions) -> Iterable[Observation]:
        delays: dict[str, float] = {}
        for series, state in self._states():
            delays[series] = max(delays.get(series, 0.0), state.hedge_delay)
        return [Observation(delay, _attributes(series)) for series, delay in delays.items()]

    def _waiting(self, _options: CallbackOptions) -> Iterable[Observation]:
        # Of all topics, or a gauge would never fall to 0.
        counts = dict.fromkeys((series for series, _ in self._states()), 0)
        for batch in self._undecided():
            series = self._series_of(batch.topic)
            counts[series] = counts.get(series, 0) + batch.count
        return [Observation(count, _attributes(series)) for series, count in counts.items()]

    def _ages(self, _options: CallbackOptions) -> Iterable[Observation]:
        oldest = dict.fromkeys((series for series, _ in self._states()), 0.0)
        now = time.time()
        for batch in self._undecided():
            series, age = self._series_of(batch.topic), max(0.0, now - batch.publish_start_time)
            oldest[series] = max(oldest.get(series, 0.0), age)
        return [Observation(age, _attributes(series)) for series, age in oldest.items()]

    def _blocked(self, _options: CallbackOptions) -> Iterable[Observation]:
        blocked = sum(one.blocked for one in tuple(self._waits))
        return [Observation(blocked, {"messaging.system": "gcp_pubsub"})]

    def _states(self) -> Iterable[tuple[str, TopicState]]:
        """Return each topic of each publisher, and the series that it is in."""
        with self._lock:
            self._fold_dropped()
            # Copied, for a publisher may add a topic meanwhile. Its lock is not needed: it makes no
            # difference which batch a number just misses.
            live = [topics.copy() for topics in self._live.values()]
        return ((self._series_of(name), one[name]) for one in live for name in one)

    def _series_of(self, topic: str) -> str:
        if topic in self._series:
            return topic
        if len(self._series) >= MAX_TOPICS:
            return _OTHERS
        self._series.add(topic)
        return topic

    def _undecided(self) -> Iterable[Batch]:
        batches = (one.undecided.copy() for one in tuple(self._waits))
        return [batch for batch in itertools.chain.from_iterable(batches) if batch.count]

    def _fold_dropped(self) -> None:
        """Keep what dropped publishers had counted. The lock is held."""
        while self._dropped:
            for name, state in self._live.pop(self._dropped.popleft()).items():
                series = self._series_of(name)
                kept = self._kept.setdefault(series, dict.fromkeys(COUNTS, 0))
                for count in COUNTS:
                    kept[count] += getattr(state, count)


def _is_real(provider: MeterProvider) -> bool:
    """Tell whether a meter provider does anything; those of the API itself do not."""
    return type(provider).__module__.split(".")[:2] != ["opentelemetry", "metrics"]


@functools.lru_cache(maxsize=1024)
def _attributes(topic: str) -> _Attributes:
    """Return a topic as the official client's spans name it, or that it is beyond the bound."""
    if topic == _OTHERS:
        return {"messaging.system": "gcp_pubsub", OVERFLOW: True}
    parts = topic.split("/")
    project = {"gcp.project_id": parts[1]} if len(parts) == 4 else {}
    return {"messaging.system": "gcp_pubsub", **project, "messaging.destination.name": parts[-1]}


@functools.lru_cache(maxsize=1024)
def _duration_attributes(topic: str, outcome: str, error: str) -> _Attributes:
    return {
        **_attributes(topic),
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "hedged_pubsub.outcome": outcome,
        **({"error.type": error} if error else {}),
    }


METRICS: Final = Metrics()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=METRICS.reset_after_fork)
