"""Batches whose requests a test answers by hand, on an event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from typing import Any, cast

from google.pubsub_v1 import types

from hedged_pubsub.aio.driver import Driver
from hedged_pubsub.aio.rpc import AsyncPublishMethod, AsyncPublishRpc
from hedged_pubsub.connections import Connections
from hedged_pubsub.events import ORIGINAL, Fail, Failed

from ..story import Transient


class FakeCall:
    """A request under way."""

    def __init__(self, attempt: int, timeout: float | None) -> None:
        self.attempt = attempt
        self.timeout = timeout
        self.cancelled = False
        self._answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def succeed(self, answer: object = "answer") -> None:
        """Answer the request, if it was not cancelled."""
        if not self._answer.done():
            self._answer.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Fail the request, if it was not cancelled."""
        if not self._answer.done():
            self._answer.set_exception(error)

    async def wait(self) -> object:
        """Return the answer, or raise the error."""
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.cancelled = True
            raise


class FakeBatch:
    """A batch that notes its requests and its outcome."""

    def __init__(
        self, *, total_timeout: float = math.inf, backoffs: tuple[float, ...] | None = (0.1,)
    ) -> None:
        self.topic = "topic"
        self.total_timeout = total_timeout
        self.calls: list[FakeCall] = []
        self.outcomes: list[object] = []
        self.judged: list[BaseException] = []
        self.on_send: Callable[[FakeCall], None] = lambda _: None
        self.ended = asyncio.Event()
        self._backoffs = iter(backoffs or ())

    async def send(self, attempt: int, timeout: float | None) -> object:
        """Send a request and wait for its answer."""
        call = FakeCall(attempt, timeout)
        self.calls.append(call)
        self.on_send(call)
        return await call.wait()

    def judge(self, error: BaseException) -> Failed:
        """Call ``Transient`` transient."""
        self.judged.append(error)
        transient = isinstance(error, Transient)
        backoff = next(self._backoffs, None) if transient else None
        return Failed(ORIGINAL, error, transient=transient, backoff=backoff)

    def succeed(self, answer: object, attempt: int) -> None:
        """Note the success."""
        self.outcomes.append((answer, attempt))
        self.ended.set()

    def fail(self, failure: Fail) -> None:
        """Note the failure."""
        self.outcomes.append(failure)
        self.ended.set()


async def earn(driver: Driver, tokens: int) -> None:
    """Let batches succeed until the bucket holds ``tokens``."""
    for _ in range(tokens * 10):
        batch = FakeBatch()
        batch.on_send = FakeCall.succeed
        driver.submit(batch)
        await batch.ended.wait()


async def turns(count: int = 5) -> None:
    """Let the loop go round so often, which takes no virtual time."""
    for _ in range(count):
        await asyncio.sleep(0)


class FakeMethod:
    """Stands in for the publish method of a channel; a test answers its requests by hand."""

    def __init__(self) -> None:
        self.requests: list[FakeRequest] = []
        self.is_plain = True
        self.prepare: Callable[[bytes], object] = lambda serialized: serialized

    def arguments(self, topic: str, attempt: int, publish_start_time: float) -> dict[str, object]:
        """Return no metadata."""
        return {}

    def multicallable(self, request: bytes, *, timeout: float | None) -> FakeRequest:
        """Note a request."""
        self.requests.append(FakeRequest(request))
        return self.requests[-1]


class FakeRpc(AsyncPublishRpc):
    """Sends all attempts with one fake method."""

    def __init__(self, method: FakeMethod) -> None:
        self._publish = cast("AsyncPublishMethod", method)
        self._connections = Connections(self._publish)
        self._look_at = math.inf
        self._loop = asyncio.get_running_loop()


class FakeRequest:
    """A request on the wire, as ``grpc.aio`` returns it."""

    def __init__(self, serialized: bytes) -> None:
        self.messages = [
            message.data.decode()
            for message in types.PublishRequest.deserialize(serialized).messages
        ]
        self.cancelled = False
        self.response: asyncio.Future[types.PublishResponse]
        self.response = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, types.PublishResponse]:
        """Wait for the response."""
        return self.response.__await__()

    def cancel(self) -> None:
        """Note it."""
        self.cancelled = True

    def answer(self) -> None:
        """Answer with an id for each message."""
        self.response.set_result(types.PublishResponse(message_ids=self.messages))
