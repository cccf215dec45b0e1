"""Flow control on an event loop: the official limits, and waiting without blocking."""

from __future__ import annotations

import asyncio
import collections

from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError
from google.cloud.pubsub_v1.types import LimitExceededBehavior, PublishFlowControl


class FlowControl:
    """Lends credit for messages, first come, first served.

    Args:
        settings: The publisher options'.

    Attributes:
        counts: Whether it counts at all; by default it does not.
    """

    def __init__(self, settings: PublishFlowControl) -> None:
        self._message_limit: int = settings.message_limit
        self._byte_limit: int = settings.byte_limit
        self._refuses = settings.limit_exceeded_behavior == LimitExceededBehavior.ERROR
        self.counts = settings.limit_exceeded_behavior != LimitExceededBehavior.IGNORE
        self._messages = 0
        self._bytes = 0
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()

    async def borrow(self, size: int) -> None:
        """Take credit for one message; waits for it if the options say so.

        Args:
            size: The serialized message's, in bytes.

        Raises:
            google.cloud.pubsub_v1.publisher.exceptions.FlowControlLimitError: If the message would
                exceed the limits, and the options say not to wait, or it alone exceeds them.
        """
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        if self._refuses:
            raise FlowControlLimitError(
                "Flow control limits would be exceeded - "
                f"{self._load(self._messages + 1, self._bytes + size)}."
            )
        if size > self._byte_limit or self._message_limit < 1:
            raise FlowControlLimitError(
                "Total flow control limits too low for the message, would block forever - "
                f"{self._load(1, size)}."
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._waiting.remove((size, granted))
                self._grant()  # it may have stood before ones that fit
            else:
                self.give_back(size)  # it was granted in the same moment
            raise

    def give_back(self, size: int) -> None:
        """Return the credit of one message."""
        self._messages -= 1
        self._bytes -= size
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting[0]
            if granted.cancelled():
                return  # its task is about to take itself out, and comes here again
            self._waiting.popleft()
            self._take(size)
            granted.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._messages + 1 <= self._message_limit and self._bytes + size <= self._byte_limit

    def _take(self, size: int) -> None:
        self._messages += 1
        self._bytes += size

    def _load(self, messages: int, size: int) -> str:
        return f"messages: {messages} / {self._message_limit}, bytes: {size} / {self._byte_limit}"
