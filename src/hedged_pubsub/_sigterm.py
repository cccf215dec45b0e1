"""SIGTERM, by which Kubernetes, Cloud Run and others end a process: sends what was accepted.

Python's default ends the process at once, without exit handlers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
from collections.abc import Awaitable
from types import FrameType
from typing import Any, Final

from hedged_pubsub._sync import process
from hedged_pubsub.aio import publisher as aio

_ASYNC_TIMEOUT: Final = 10.0
"""Seconds that are waited for an ``AsyncHedgedPublisher``: the default of ``exit_timeout``."""


def flush_on_sigterm() -> None:
    """Send what all publishers of the process have accepted when SIGTERM comes.

    The signal's previous handler is called as soon as sending has begun, and decides what becomes
    of the process. Where there was none, the process ends by the signal, once every message is
    stored or has failed, or after the publishers' ``exit_timeout`` (10 s for
    ``AsyncHedgedPublisher``). Where the signal was ignored, it still is, but for the sending. No
    publisher is stopped, and hedging may be off.

    Call it in the main thread, after whatever else sets a handler: a handler that is set later
    takes the place of this one. Calling it again does nothing.

    Raises:
        RuntimeError: If the present handler was not set from Python, and so could not be called.
        ValueError: If it is not called in the main thread of the main interpreter.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if isinstance(previous, _Handler):
        return
    if previous is None:
        raise RuntimeError(
            "SIGTERM has a handler that was not set from Python and cannot be called from it: let "
            "the program that set it call flush() of each publisher"
        )
    signal.signal(signal.SIGTERM, _Handler(previous))


class _Handler:
    """Begins to send, and calls the previous handler."""

    def __init__(self, previous: Any) -> None:
        self._previous = previous
        self._ends = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        flushes = [
            asyncio.run_coroutine_threadsafe(_flush(publisher), loop)
            for publisher, loop in list(aio.publishers.items())
            if loop.is_running()
        ]
        if self._previous == signal.SIG_DFL:
            if not self._ends:
                self._ends = True
                self._wait_and_end(flushes)
            return
        process.send_soon()
        if callable(self._previous):
            self._previous(number, frame)

    def _wait_and_end(self, flushes: list[concurrent.futures.Future[None]]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            try:
                process.send_before_the_end()
                for flush in flushes:
                    flush.result()
            finally:
                _end()
        else:  # which this call holds up: publishers of its would wait in vain
            asyncio.run_coroutine_threadsafe(_end_on_loop(loop, flushes), loop)


async def _flush(publisher: aio.AsyncHedgedPublisher) -> None:
    with contextlib.suppress(Exception):
        await publisher.flush(_ASYNC_TIMEOUT)


async def _end_on_loop(
    loop: asyncio.AbstractEventLoop, flushes: list[concurrent.futures.Future[None]]
) -> None:
    waits: list[Awaitable[None]] = [asyncio.wrap_future(flush) for flush in flushes]
    try:
        await asyncio.gather(loop.run_in_executor(None, process.send_before_the_end), *waits)
    finally:
        _end()


def _end() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
