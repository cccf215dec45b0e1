"""A batch driven by an event loop: its futures, and what the driver needs of it."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

import grpc
from google.api_core import exceptions

from hedged_pubsub._batch import BatchContents
from hedged_pubsub.aio.rpc import AsyncPublishRpc
from hedged_pubsub.call_policy import CallPolicy
from hedged_pubsub.events import ORIGINAL, Fail


class BatchOwner(Protocol):
    """Whom a batch tells about its end."""

    def settled(self, batch: Batch) -> None:
        """The batch is decided; its futures are not resolved yet."""


class Batch(BatchContents):
    """Messages of one topic and one call policy, from the first one's arrival to the outcome.

    Args:
        topic: The topic's full name.
        policy: The retry and the timeout of its messages.
        rpc: How it is sent.
        loop: The event loop.
        owner: Told about its end.

    Attributes:
        futures: Those of the messages, until they are resolved.
    """

    __slots__ = ("_loop", "_owner", "_request", "_rpc", "futures")

    def __init__(
        self,
        topic: str,
        policy: CallPolicy,
        rpc: AsyncPublishRpc,
        loop: asyncio.AbstractEventLoop,
        owner: BatchOwner,
    ) -> None:
        super().__init__(topic, policy)
        self._rpc = rpc
        self._loop = loop
        self._owner = owner
        self.futures: list[asyncio.Future[str]] = []
        self._request: Any = None

    def add(self, prefix: bytes, body: bytes, publish_start_time: float) -> asyncio.Future[str]:
        """Add a message; see ``append``."""
        self.append(prefix, body, publish_start_time)
        future: asyncio.Future[str] = self._loop.create_future()
        self.futures.append(future)
        return future

    def commit(self) -> None:
        """Get ready to be sent."""
        self._request = self._rpc.prepare(self.serialize())

    async def send(self, attempt: int, timeout: float | None) -> object:
        """Send the batch and return the message ids.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
        """
        connection = self._rpc.connection(attempt)
        self.travels_on(attempt, connection)
        if attempt == ORIGINAL:
            timeout = self.next_timeout()
        elif self._tracing is not None:
            self._tracing.hedged(attempt)
        try:
            response = await self._rpc.call(
                connection, self._request, self.topic, attempt, self.publish_start_time, timeout
            )
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        return self.check(list(response.message_ids))

    def succeed(self, answer: object, attempt: int) -> None:
        """Resolve the futures with the message ids."""
        ids = cast("list[str]", answer)
        if attempt == ORIGINAL:
            self.original_on.heard()
        else:
            self._rpc.overtaken(self.original_on, self.hedges_on)
        if self._tracing is not None:
            self._tracing.succeed(ids, attempt)
        self._owner.settled(self)
        for future, message_id in zip(self.futures, ids, strict=True):
            # A future is cancelled with the task that waits for it; its message is stored.
            if not future.done():
                future.set_result(message_id)
        self.futures.clear()

    def fail(self, failure: Fail) -> None:
        """Fail the futures with what the official client would raise."""
        error = self.error_of(failure)
        if isinstance(error, StopIteration):  # of a user's predicate; no future takes it
            stop, error = error, RuntimeError("the retry raised StopIteration")
            error.__cause__ = stop
        if self._tracing is not None:
            self._tracing.fail(error)
        self._owner.settled(self)
        undecided = [future for future in self.futures if not future.done()]
        for future in undecided:
            future.set_exception(error)
        # asyncio reports an error that nobody asked for. Once a batch is enough: whoever has seen
        # the error of its first message need not ask for the same of the others.
        for future in undecided[1:]:
            future.exception()
        self.futures.clear()  # or the error's traceback, which leads here, would keep them alive
