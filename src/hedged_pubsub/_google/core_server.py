"""A gRPC server on gRPC's core: one thread, no pool, nothing that instrumentation patches.

``grpc.server()`` hands each call to a thread of a pool, which waits there for the request and for
each write: some 500 µs of CPU time in wake-ups, and a thread for each call that is held, unless
its handler is of an experimental kind. OpenTelemetry and ddtrace put their interceptors into every
``grpc.server()`` of the process, and break handlers of that kind.

This one stands in for a service somewhere else, of which a program has no spans. It asks gRPC's
core for the next event, handles it, and asks again; a held call is an entry in a heap. It uses
those names of ``cygrpc`` that ``grpc.server()`` is made of.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import grpc
from grpc._cython import cygrpc

Handler = Callable[["ServerCall", bytes], object]
"""Takes a call and its first message, on the server's thread, and must not wait there."""

_NO_FLAGS: Final = 0
_INITIAL_METADATA: Final = cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS)

_LOGGER: Final = logging.getLogger(__name__)


class ServerCall:
    """A call from a client. What is said to run on the server's thread is to be called there only.

    Attributes:
        metadata: the request's metadata, in order.
        peer: the client's end of the connection.
        is_over: whether it has ended, in whatever way.
        when_over: is called on the server's thread when it has; set it there, unless ``is_over``.
    """

    __slots__ = ("_core", "_deadline", "_has_begun", "_server", "is_over", "metadata", "when_over")

    def __init__(self, server: CoreServer, core: Any, deadline: float, metadata: Any) -> None:
        self._server = server
        self._core = core
        self._deadline = deadline
        self._has_begun = False
        self.metadata: tuple[tuple[str, str | bytes], ...] = metadata
        self.is_over = False
        self.when_over: Callable[[], object] | None = None

    @property
    def peer(self) -> str:
        """The client's end of the connection, such as ``"ipv4:127.0.0.1:41234"``."""
        peer: bytes | str = self._core.peer()
        return peer if isinstance(peer, str) else peer.decode()

    def time_remaining(self) -> float:
        """Return the seconds until the client's deadline; decades if it has none."""
        return max(self._deadline - time.time(), 0.0)

    def receive(self, callback: Callable[[bytes | None], object]) -> None:
        """Call ``callback`` on the server's thread with the next message; None if there is none."""
        self._start(
            (cygrpc.ReceiveMessageOperation(_NO_FLAGS),),
            lambda event: callback(event.batch_operations[0].message()),
        )

    def send(self, message: bytes) -> None:
        """Send one of several messages and wait until it is written. Not on the server's thread."""
        written = threading.Event()
        if self._start(self._message(message), lambda _event: written.set()):
            written.wait()

    def end(
        self,
        code: grpc.StatusCode = grpc.StatusCode.OK,
        details: str = "",
        *,
        message: bytes | None = None,
        trailing_metadata: Any = None,
    ) -> None:
        """End the call, after a last message if there is one; call it once, from any thread."""
        operations = () if message is None else self._message(message)
        if not self._has_begun and message is None:
            operations = (_INITIAL_METADATA,)
        status = cygrpc.SendStatusFromServerOperation(
            trailing_metadata, code.value[0], details.encode(), _NO_FLAGS
        )
        self._start((*operations, status), _ignore)

    def _message(self, message: bytes) -> tuple[Any, ...]:
        sent = cygrpc.SendMessageOperation(message, _NO_FLAGS)
        if self._has_begun:
            return (sent,)
        self._has_begun = True
        return (_INITIAL_METADATA, sent)

    def _start(self, operations: Iterable[Any], tag: Callable[[Any], object]) -> bool:
        return self._server.start_batch(self._core, operations, tag)


class CoreServer:
    """Serves methods on a port, from `start` to `stop`.

    Args:
        handlers: of each method, by its full name, such as ``"/package.Service/Method"``.
        options: gRPC's channel arguments.
        name: of its thread.
    """

    def __init__(
        self, handlers: Mapping[str, Handler], options: Iterable[tuple[str, Any]], name: str
    ) -> None:
        self._handlers = {method.encode(): handler for method, handler in handlers.items()}
        self._core = cygrpc.Server(tuple(options), False)
        self._queue = cygrpc.CompletionQueue()
        self._core.register_completion_queue(self._queue)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        # What is to be called later: when, a number that tells equal times apart, and what.
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        # Guards the two below: gRPC ends the process if work is started on a queue that is shut
        # down, or a call is asked for once the server is.
        self._lock = threading.Lock()
        self._stopping = False
        self._queue_is_open = True

    def listen(self, address: str) -> int:
        """Listen on ``host:port``, and return the port.

        Raises:
            OSError: if that is not possible.
        """
        try:
            port = int(self._core.add_http2_port(address.encode()))
        except RuntimeError as error:
            raise OSError(str(error)) from error
        if port == 0:
            raise OSError(f"cannot listen on {address}")
        return port

    def start(self) -> None:
        """Start to serve."""
        self._core.start()
        self._core.request_call(self._queue, self._queue, self._accept)
        self._thread.start()

    def stop(self, grace: float) -> None:
        """Refuse new calls, cancel those that are open after ``grace`` seconds, end the thread."""
        if not self._thread.is_alive():
            self._core.destroy()
            return
        with self._lock:
            self._stopping = True
        self._core.shutdown(self._queue, self._drained)
        self._thread.join(grace)
        if self._thread.is_alive():
            self._core.cancel_all_calls()
        self._thread.join()
        self._core.destroy()

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Call a function at a time (monotonic seconds) unless it stops; on the server's thread."""
        heapq.heappush(self._later, (when, next(self._numbers), function))

    def start_batch(self, call: Any, operations: Iterable[Any], tag: Any) -> bool:
        """Let gRPC's core work on a call, and call ``tag`` with the event; tell if it does."""
        with self._lock:
            return self._queue_is_open and not call.start_server_batch(operations, tag)

    def _serve(self) -> None:
        shut_down = cygrpc.CompletionType.queue_shutdown
        while (event := self._queue.poll(self._wake_up())).completion_type != shut_down:
            if event.tag is not None:
                _guarded(event.tag, event)
            del event  # or it would keep its call alive while nothing happens
            while self._later and self._later[0][0] <= time.monotonic() and not self._stopping:
                _guarded(heapq.heappop(self._later)[2])

    def _wake_up(self) -> float | None:
        if not self._later or self._stopping:
            return None
        return time.time() + self._later[0][0] - time.monotonic()

    def _accept(self, event: Any) -> None:
        """Take in a new call and ask for the next one."""
        with self._lock:
            if self._stopping or not event.success:
                return
            self._core.request_call(self._queue, self._queue, self._accept)
        details = event.call_details
        handler = self._handlers.get(details.method)
        call = ServerCall(self, event.call, details.deadline, event.invocation_metadata)

        def over(_event: Any) -> None:
            call.is_over = True
            if call.when_over is not None:
                call.when_over()

        def first(message: bytes | None) -> None:
            if message is None or handler is None:
                name = details.method.decode()
                reason = "got no request" if handler else "is not implemented by this server"
                call.end(grpc.StatusCode.UNIMPLEMENTED, f"{name} {reason}")
                return
            try:
                handler(call, message)
            except Exception as error:
                call.end(grpc.StatusCode.UNKNOWN, f"the server has failed: {error!r}")
                raise

        self.start_batch(event.call, (cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), over)
        call.receive(first)

    def _drained(self, _event: Any) -> None:
        with self._lock:
            self._queue_is_open = False
            self._queue.shutdown()


def _guarded(function: Callable[..., object], *args: object) -> None:
    """Call a function; the server goes on if it fails."""
    try:
        function(*args)
    except Exception:
        _LOGGER.exception("the server has failed to handle an event")


def _ignore(_event: object) -> None:
    """Do nothing at the end of a batch."""
