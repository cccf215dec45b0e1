"""A batch driven by an event loop: its futures, and what the driver needs of it."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

import grpc
from google.api_core import exceptions

from hedged_pubsub._batch import BatchContents
from hedged_pubsub._rpc import PublishMethod
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
        method: How it is sent.
        loop: The event loop.
        owner: Told about its end.

    Attributes:
        futures: Those of the messages, until they are resolved.
    """

    __slots__ = ("_loop", "_method", "_owner", "_request", "futures")

    def __init__(
        self,
        topic: str,
        policy: CallPolicy,
        method: PublishMethod,
        loop: asyncio.AbstractEventLoop,
        owner: BatchOwner,
    ) -> None:
        super().__init__(topic, policy)
        self._method = method
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
        self._request = self._method.prepare(self.serialize())

    async def send(self, attempt: int, timeout: float | None) -> object:
        """Send the batch and return the message ids.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
        """
        if attempt == ORIGINAL:
            timeout = self.next_timeout()
        elif self._tracing is not None:
            self._tracing.hedged(attempt)
        arguments = self._method.arguments(self.topic, attempt, self.publish_start_time)
        call = self._method.multicallable(self._request, timeout=timeout, **arguments)
        try:
            response = await call
        except asyncio.CancelledError:
            # A call that is dropped would go on at the server.
            call.cancel()
            raise
        except grpc.RpcError as error:
            raise exceptions.from_grpc_error(error) from error
        return self.check(list(response.message_ids))

    def succeed(self, answer: object, attempt: int) -> None:
        """Resolve the futures with the message ids."""
        ids = cast("list[str]", answer)
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
