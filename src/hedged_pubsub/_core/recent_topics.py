"""Which topics have histograms of their own: those that were used last.

A publisher may send to a hundred thousand topics, and most of them rarely. Each keeps its counts
and its token bucket. The histograms of one that was not used lately are added to those that all
such topics share, so that the totals stay right.
"""

from __future__ import annotations

import collections
from typing import Final

from hedged_pubsub._core.stats import Latencies
from hedged_pubsub._core.topic_state import TopicState

MAX_TOPICS: Final = 1000
"""Topics of a publisher that have more than their counts and their bucket. Their histograms are 15
MB at the very most, and half of the 2,000 series that OpenTelemetry's SDK takes for a metric."""


class RecentTopics:
    """The topics that were used last, ``MAX_TOPICS`` at most.

    Attributes:
        others: The latencies of the other topics.
    """

    __slots__ = ("_queue", "others")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Know no topics."""
        self.others = Latencies()
        # With how many batches each had had when it was put there.
        self._queue: collections.deque[tuple[TopicState, int]] = collections.deque()

    def add(self, topic: TopicState) -> None:
        """Let a topic that is used now have histograms, and take them from another if need be."""
        topic.begin_use()
        self._queue.append((topic, topic.batches + 1))  # the batch that it is used for now
        if len(self._queue) > MAX_TOPICS:
            self._remove_one()

    def _remove_one(self) -> None:
        """Remove the first one that has not been used since it was put there.

        Those that were go to the end, so that no batch has to note that its topic is in use (the
        "clock" of virtual memory): one step here at most for each batch.
        """
        topic, batches = self._queue.popleft()
        while topic.batches != batches:
            self._queue.append((topic, topic.batches))
            topic, batches = self._queue.popleft()
        self.others.add(topic.latencies)
        topic.end_use(self.others)
