"""Requests that a test answers by hand, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, cast

from google.pubsub_v1 import types

from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub.aio.driver import Driver
from hedged_pubsub.aio.rpc import AsyncPublishRpc

from .. import fakes
from .virtual_loop import VirtualLoop


class FakeRequest:
    """A request on the wire, as ``grpc.aio`` returns it; ``messages`` is what those in it say."""

    def __init__(self, request: object, attempt: int, timeout: float | None) -> None:
        self.attempt = attempt
        self.timeout = timeout
        self.messages = [str(attempt)]
        if isinstance(request, bytes):
            sent = types.PublishRequest.deserialize(request).messages
            self.messages = [message.data.decode() for message in sent]
        self.cancelled = False
        self.response: asyncio.Future[types.PublishResponse]
        self.response = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, types.PublishResponse]:
        """Wait for the response."""
        return self.response.__await__()

    def cancel(self) -> None:
        self.cancelled = True

    def succeed(self, *ids: str) -> None:
        """Answer: with what each message says for its id, unless told; see ``fail``."""
        if not self.response.done():
            response = types.PublishResponse(message_ids=ids or self.messages)
            self.response.set_result(response)

    def fail(self, error: BaseException) -> None:
        if not self.response.done():
            self.response.set_exception(error)


class FakeMethod(fakes.FakeMethod):
    """Stands in for the publish method of a channel; a test answers its requests by hand."""

    def __init__(self, transport: object, channel: Any, **_: object) -> None:
        super().__init__(transport, channel)
        self.requests: list[FakeRequest] = []
        self.on_request: Callable[[FakeRequest], object] = lambda _: None

    def multicallable(self, request: object, *, timeout: float | None, attempt: int) -> FakeRequest:
        call = FakeRequest(request, attempt, timeout)
        self.requests.append(call)
        self.on_request(call)
        if isinstance(request, fakes.FakeBatch):
            request.sent(call)
        return call


class FakeRpc(AsyncPublishRpc):
    """The requests of a publisher whose channel is a fake one."""

    method_class = cast("Any", FakeMethod)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(cast("Any", None), None, loop, with_telemetry=True)
        self.method = cast("FakeMethod", self._method)

    def _connect(self, channel: object) -> bool:
        return True


class Interruption(BaseException):
    """Raised by a signal handler, or by a user's code that wants to end the process."""


class Asyncio(fakes.Bench):
    """A driver on a virtual loop, as ``fakes.Threads``.

    ``settled`` are the batches that it says are decided, while their futures are not.
    """

    def __init__(self, loop: VirtualLoop, settings: HedgingSettings | None, tokens: int) -> None:
        self.loop = loop
        self.clock, self.call_at, self.advance = loop.time, loop.call_at, loop.let_pass
        self.settled: list[Any] = []
        self.rpc: Any = FakeRpc(loop)
        self.driver = Driver(settings, self.rpc, loop, self._settle)
        self.stats = self.driver.stats
        for _ in range(tokens * 10):
            self.send(on_send=FakeRequest.succeed)
        loop.let_pass()
        self.settled.clear()

    def _settle(self, batch: Any) -> None:
        assert not batch.future.done() or batch.future.cancelled()
        self.settled.append(batch)

    def batch(self, **arguments: Any) -> fakes.FakeBatch:
        return fakes.FakeBatch(future=self.loop.create_future(), **arguments)

    def end(self, batch: fakes.FakeBatch) -> str:
        """Wait for the outcome, and until what was cancelled has taken that in."""
        self.loop.run(asyncio.wait([batch.future]))
        return batch.outcome
