"""OpenTelemetry metrics of all publishers of the process.

Counters and the gauge are read from the publishers' numbers when a reader collects. Only the
durations of batches are noted as they happen, and only for publishers that were made when a meter
provider was set; they are recorded in bulk, on a thread that may run a user's code. So without a
meter provider nothing of OpenTelemetry is called once a publisher is made.

Names, units and attributes follow the semantic conventions for messaging; what those do not have
begins with ``hedged_pubsub``.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation

from hedged_pubsub._version import __version__
from hedged_pubsub.stats import COUNTS
from hedged_pubsub.topic_state import Durations, TopicState

_LOGGER = logging.getLogger(__name__)

DURATION: Final = "messaging.client.operation.duration"
TOKENS: Final = "hedged_pubsub.tokens.left"

# What the conventions advise for this histogram, in seconds.
_BOUNDARIES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

_MANY: Final = 128
"""Durations to be recorded at once. Recording one takes a few microseconds, so that all of them
take less than a switch of threads, and few switches are made."""


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

_Topics = dict[str, TopicState]
_Attributes = Mapping[str, str]


class Metrics:
    """The metrics of one process; publishers of one topic add up.

    Args:
        get_meter_provider: Asked when a publisher is made.
    """

    def __init__(
        self, get_meter_provider: Callable[[], MeterProvider] = metrics.get_meter_provider
    ) -> None:
        self._get_meter_provider = get_meter_provider
        self._keys = itertools.count()
        self._live: dict[int, _Topics] = {}
        self._histogram: Histogram | None = None
        self._registered = False
        self._lock = threading.Lock()
        self._dropped: collections.deque[int] = collections.deque()
        # What publishers had counted that are gone: a counter never falls.
        self._kept: dict[str, dict[str, int]] = {}
        self._durations: collections.deque[tuple[str, str, str, float]] = collections.deque()

    def start_anew(self) -> None:
        """Start from zero, in a forked child: what the parent has counted is the parent's."""
        self._lock = threading.Lock()
        self._kept.clear()
        self._durations.clear()
        for topics in self._live.values():
            topics.clear()

    def watch(self, owner: object, topics: _Topics) -> Durations | None:
        """Export the numbers of a publisher.

        Args:
            owner: Its driver. Once that is gone, what it counted is kept, and nothing else of it.
            topics: Its topics, with what was counted on each; always the same dictionary.

        Returns:
            Where to note what its batches take; ``None`` without a meter provider.
        """
        with self._lock:
            self._fold_dropped()
            key = next(self._keys)
            self._live[key] = topics
            register, self._registered = not self._registered, True
        # A garbage collection may call this anywhere, in ``self._lock`` too: it only takes note.
        weakref.finalize(owner, self._dropped.append, key).atexit = False
        try:
            provider = self._get_meter_provider()
            if register:
                self._register(provider.get_meter("hedged_pubsub", __version__))
        except Exception:
            _LOGGER.exception("metrics are not exported; publishing goes on")
            return None
        return self if _is_real(provider) else None

    def add(self, topic: str, outcome: str, error: str, seconds: float) -> bool:
        """Note what a batch took, without calling anybody; see ``topic_state.Durations``."""
        durations = self._durations
        durations.append((topic, outcome, error, seconds))
        return len(durations) % _MANY == 0

    def record(self) -> None:
        """Record what was noted. Runs a user's code: that of the meter provider."""
        histogram, durations = self._histogram, self._durations
        if histogram is None:  # the meter provider failed to make it
            durations.clear()
            return
        try:
            while durations:
                topic, outcome, error, seconds = durations.popleft()
                histogram.record(seconds, _duration_attributes(topic, outcome, error))
        except IndexError:  # another thread records, too, and was faster
            return
        except Exception:
            _LOGGER.exception("durations could not be recorded; publishing goes on")
            durations.clear()

    def _register(self, meter: Meter) -> None:
        """Make the instruments, once a process.

        Those made before there is a meter provider begin to work when one is set.
        """
        for count, (name, unit, description) in COUNTERS.items():
            observe = functools.partial(self._observe_count, count)
            meter.create_observable_counter(name, [observe], unit, description)
        meter.create_observable_gauge(
            TOKENS, [self._observe_tokens], "{token}", "Tokens left: hedges that can be sent now."
        )
        advice: dict[str, Any] = {"explicit_bucket_boundaries_advisory": _BOUNDARIES}
        # Not in the oldest supported API. There, a view has to set them.
        if advice.keys() - inspect.signature(meter.create_histogram).parameters.keys():
            advice = {}
        self._histogram = meter.create_histogram(
            DURATION,
            "s",
            "What batches took from their commit to the answer that decided them, or to the "
            "error that ended them.",
            **advice,
        )

    def _observe_count(self, count: str, _options: CallbackOptions) -> Iterable[Observation]:
        if count == COUNTS[0]:
            # Once a collection, so that it finds the durations of all that it counts.
            self.record()
        with self._lock:
            self._fold_dropped()
            totals = collections.Counter(
                {topic: counts[count] for topic, counts in self._kept.items()}
            )
            for name, state in self._live_topics():
                totals[name] += getattr(state, count)
        return [Observation(total, _attributes(name)) for name, total in totals.items()]

    def _observe_tokens(self, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            self._fold_dropped()
            tokens: dict[str, float] = collections.defaultdict(float)
            for name, state in self._live_topics():
                tokens[name] += state.tokens
        return [Observation(left, _attributes(name)) for name, left in tokens.items()]

    def _live_topics(self) -> list[tuple[str, TopicState]]:
        # Copied first, for a publisher may add a topic meanwhile. Reading a number needs no lock
        # of the publisher's: to a counter it makes no difference which batch it just misses.
        return [item for topics in self._live.values() for item in topics.copy().items()]

    def _fold_dropped(self) -> None:
        """Add what dropped publishers had counted to what is kept of such. The lock is held."""
        while self._dropped:
            for name, state in self._live.pop(self._dropped.popleft()).items():
                kept = self._kept.setdefault(name, dict.fromkeys(COUNTS, 0))
                for count in COUNTS:
                    kept[count] += getattr(state, count)


def _is_real(provider: MeterProvider) -> bool:
    """Tell whether a meter provider does anything; those of the API itself do not."""
    return type(provider).__module__.split(".")[:2] != ["opentelemetry", "metrics"]


@functools.lru_cache(maxsize=1024)
def _attributes(topic: str) -> _Attributes:
    """Return a topic as the official client's spans name it."""
    attributes = {"messaging.system": "gcp_pubsub"}
    parts = topic.split("/")
    if len(parts) == 4:
        attributes["gcp.project_id"] = parts[1]
    return attributes | {"messaging.destination.name": parts[-1]}


@functools.lru_cache(maxsize=1024)
def _duration_attributes(topic: str, outcome: str, error: str) -> _Attributes:
    attributes = {
        **_attributes(topic),
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "hedged_pubsub.outcome": outcome,
    }
    return attributes | ({"error.type": error} if error else {})


METRICS: Final = Metrics()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=METRICS.start_anew)
