"""An event loop on a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent import futures


class LoopThread:
    """An event loop on a thread of its own, from `start` to `stop`."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()  # guards the one below
        self._running = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, which works only once."""
        if self._thread.ident is not None:
            raise RuntimeError(f"{self._thread.name} was started before; make another one")
        self.loop = asyncio.SelectorEventLoop()
        self._thread.start()
        self._running = True

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the thread and wait for it; do nothing unless the thread runs."""
        future: futures.Future[None] = futures.Future()

        def run() -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                future.set_exception(error)
            else:
                future.set_result(None)

        if self._post(run):
            future.result()

    def stop(self) -> None:
        """End the thread, after the calls that wait for it; forget what is not due yet."""
        if self._post(lambda: self.loop.stop(), last=True):
            self._thread.join()

    def _post(self, function: Callable[[], object], *, last: bool = False) -> bool:
        with self._lock:
            if not self._running:
                return False
            self._running = not last
            self.loop.call_soon_threadsafe(function)
        return True

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()
