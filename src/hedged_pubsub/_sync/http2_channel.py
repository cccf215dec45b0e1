"""What a gRPC channel is to the rest of the package, on HTTP/2: one connection that is kept.

Requests are put together and sent on the library's thread, all that it has started in one turn at
once; the I/O thread takes in the answers. Connecting and renewing tokens block, so workers do it.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from hedged_pubsub._google.http2 import Http2Client, Target
from hedged_pubsub._http2.frames import Http2Error
from hedged_pubsub._http2.grpc import Status
from hedged_pubsub._sync.http2_call import Http2Call, finish
from hedged_pubsub._sync.http2_link import Link
from hedged_pubsub._sync.io_thread import READ, WRITE, IoThread, close_quietly
from hedged_pubsub._sync.library_thread import LibraryThread
from hedged_pubsub._sync.workers import Workers

_FIRST_BACKOFF: Final = 0.2
_MAX_BACKOFF: Final = 1.0
"""Seconds until a connection that could not be made is tried again, less up to a fifth."""

_MAX_RESENDS: Final = 3
"""Times that a request which the server has certainly not processed is sent again unasked."""


class Connector:
    """The state of a channel; what threads and sockets refer to. ``Http2Channel`` owns it."""

    def __init__(
        self,
        client: Http2Client,
        target: Target,
        library: LibraryThread,
        workers: Workers,
        io: IoThread,
        clock: Callable[[], float],
    ) -> None:
        self.client = client
        self._target = target
        self._first_fields = client.first_fields(target)
        self._token = client.token
        self._library = library
        self._workers = workers
        self._io = io
        self._clock = clock
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Start without a connection, in a forked child; the parent's is the parent's."""
        for link in getattr(self, "_links", ()):
            close_quietly(link.socket)
        self._lock = threading.Lock()
        self._links: list[Link] = []  # the last one takes calls, the others end theirs
        self._waiting: list[Http2Call] = []  # for a connection, or for a token
        self._is_connecting = False
        self._is_renewing = False
        self._is_closed = False
        self._is_flush_posted = False
        self._backoff = _FIRST_BACKOFF
        self._try_again_at = 0.0
        self._last_error = ""
        self._expire_at = float("inf")

    # --- Calls. On the library's thread as a rule.

    def start(self, fields: bytes, request: bytes, timeout: float | None) -> Http2Call:
        """Start a request."""
        now = self._clock()
        deadline = float("inf") if timeout is None else now + timeout
        fields += self.client.timeout_fields(timeout)
        call = Http2Call(self, fields, request, deadline)
        with self._lock:
            if self._is_closed:  # as gRPC has it
                raise ValueError("Cannot invoke RPC on closed channel!")
            refused = not self._begin(call, now)
        if refused:
            call.finish()
        return call

    def _begin(self, call: Http2Call, now: float) -> bool:
        """Send a call or let it wait, under the lock; return False if it has ended."""
        if self._is_closed:
            call.end(Status.CANCELLED, "the channel is closed")
            return False
        if call.deadline < self._expire_at:
            self._expire_at = call.deadline
            self._library.call_at(call.deadline, _expire, weakref.ref(self))
        auth, token = b"", self._token
        if token is not None:
            if now >= token.renew_at and not self._is_renewing:
                self._is_renewing = True
                self._workers.submit_urgent(self._renew)
            if now >= token.usable_until:
                self._waiting.append(call)
                return True
            auth = token.block
        links = self._links
        if not links or links[-1].core.is_closing:
            if not self._is_connecting and now < self._try_again_at:
                call.end(Status.UNAVAILABLE, self._last_error)
                return False
            self._waiting.append(call)
            self._connect(now)
            return True
        link = call.link = links[-1]
        call.block = b"".join((self._first_fields, call.fields, auth))
        link.core.start(call)
        self._send_soon()
        return True

    def _send_soon(self) -> None:
        if not self._is_flush_posted:
            self._is_flush_posted = True
            self._library.post(self._flush)

    def cancel(self, call: Http2Call) -> None:
        """End a call, and reset its stream."""
        with self._lock:
            link = call.link
            if link is None:
                if call in self._waiting:
                    self._waiting.remove(call)
                call.end(Status.CANCELLED)
            elif call.code is None:
                link.core.cancel(call)
                self._send_soon()

    def expire(self) -> None:
        """End the calls whose deadline has passed; on the library's thread."""
        now = self._clock()
        with self._lock:
            if now < self._expire_at:
                return
            late = [call for link in self._links for call in link.core.expire(now)]
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                if call.deadline <= now:
                    call.end(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
                    late.append(call)
                else:
                    self._waiting.append(call)
            deadlines = [link.core.next_deadline for link in self._links]
            deadlines += [call.deadline for call in self._waiting]
            self._expire_at = min(deadlines, default=float("inf"))
            if self._expire_at < float("inf"):
                self._library.call_at(self._expire_at, _expire, weakref.ref(self))
            self._send_soon()
        finish(late)

    def probe(self, patience: float) -> None:
        """Ask for a sign of life, as a request is overdue; without one in time, give it up.

        Servers end connections that send pings without requests, or several without an answer
        between: so one is sent, and the next only after another answer.
        """
        now = self._clock()
        with self._lock:
            link = self._links[-1] if self._links else None
            if link is None or not link.core.in_flight:
                return
            sent_at = link.core.ping_sent_at
            if sent_at is None:
                if link.may_ping:
                    link.may_ping = False
                    link.core.ping(now)
                    self._send_soon()
            elif now - sent_at >= patience:
                self._io.call(self._give_up, link, sent_at)

    def _give_up(self, link: Link, sent_at: float) -> None:
        """End a connection, unless something has come that this process was late to read."""
        self._take_in(link, READ)
        if link.core.ping_sent_at == sent_at and (link.core.heard_at or 0.0) < sent_at:
            self._lost(link, "the connection answers nothing any more")

    # --- Connecting, and tokens.

    def is_ready(self) -> bool:
        """Tell whether a connection is there; begin to connect if none is."""
        with self._lock:
            if self._links and not self._links[-1].core.is_closing:
                return self._links[-1].core.is_ready
            now = self._clock()
            if not self._is_closed and now >= self._try_again_at:
                self._connect(now)
            return False

    def _connect(self, now: float) -> None:
        if not self._is_connecting and now >= self._try_again_at:
            self._is_connecting = True
            self._workers.submit_urgent(self._open)

    def _open(self) -> None:
        """Connect, on a worker."""
        try:
            self._io.start()
            link = Link(self._target)
        except Exception as error:  # noqa: BLE001 - of the network, DNS, TLS, threads
            text = f"failed to connect to {self._target.authority}: {error}"
            with self._lock:
                self._is_connecting = False
                self._failed_to_connect(text)
                failed, self._waiting = self._waiting, []
                for call in failed:
                    call.is_unprocessed = True
                    call.end(Status.UNAVAILABLE, text)
            finish(failed)
            return
        with self._lock:
            self._is_connecting = False
            if self._is_closed:
                close_quietly(link.socket)
                return
            self._links.append(link)
            refused = self._begin_waiting()
        self._io.call(self._join, link)
        finish(refused)

    def _failed_to_connect(self, text: str) -> None:
        self._last_error = text
        self._try_again_at = self._clock() + self._backoff * random.uniform(0.8, 1)  # noqa: S311
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)

    def _begin_waiting(self) -> list[Http2Call]:
        """Send what has waited, under the lock; return what has ended instead."""
        waiting, self._waiting = self._waiting, []
        now = self._clock()
        return [call for call in waiting if not self._begin(call, now)]

    def _renew(self) -> None:
        """Renew the token, on a worker."""
        token, failed, error = self._token, [], None
        if token is None:
            return
        try:
            token.renew(self._clock())
        except Exception as raised:  # noqa: BLE001 - of the network, or of a user's credentials
            error = raised
        with self._lock:
            self._is_renewing = False
            if error is None:
                failed = self._begin_waiting()
            elif self._clock() >= token.usable_until:
                failed, self._waiting = self._waiting, []
                for call in failed:
                    # As gRPC has it.
                    text = f"Getting metadata from plugin failed with error: {error}"
                    call.end(Status.UNAVAILABLE, text)
        finish(failed)

    # --- Sending. By whoever has set ``is_sending``: the library's thread, or the I/O thread.

    def _flush(self) -> None:
        with self._lock:
            self._is_flush_posted = False
            links = [link for link in self._links if not link.is_sending]
            for link in links:
                link.is_sending = True
        for link in links:
            self._send(link)

    def _send(self, link: Link) -> None:
        data = link.unsent
        while True:
            if not data:
                with self._lock:
                    data = link.take()
                    if not data:
                        link.is_sending = False
                        return
            try:
                sent = link.socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                link.unsent = b""
                self._io.call(self._lost, link, str(error))
                return
            if sent < len(data):
                link.unsent = memoryview(data)[sent:]
                self._io.call(self._watch, link, READ | WRITE)
                return
            data = link.unsent = b""

    # --- On the I/O thread.

    def _join(self, link: Link) -> None:
        self._watch(link, READ)
        self._flush()

    def _watch(self, link: Link, events: int) -> None:
        if link in self._links:
            self._io.watch(link.socket, events, functools.partial(self._take_in, link))

    def _take_in(self, link: Link, events: int) -> None:
        if events & WRITE:
            self._watch(link, READ)
            self._send(link)
        if not events & READ:
            return
        try:
            data = link.receive()
            if data is None:
                return
            if not data:
                raise ConnectionResetError("the server has closed the connection")
            now = self._clock()
            with self._lock:
                ended = link.take_in(data, now)
                must_send = link.core.has_data_to_send and not link.is_sending
                link.is_sending |= must_send
                core = link.core
                is_drained = core.is_closing and not core.in_flight and not core.waiting
        except (OSError, Http2Error) as error:
            self._lost(link, str(error), getattr(error, "code", 0))
            return
        if must_send:
            self._send(link)
        if ended:
            link.may_ping = True
            if not link.has_answered and any(not call.is_unprocessed for call in ended):
                link.has_answered = True
                self._backoff = _FIRST_BACKOFF
            self._end(ended)
        if is_drained:
            self._lost(link, "the server has closed the connection")

    def _end(self, calls: list[Any]) -> None:
        """Tell of calls that have ended; those that were not processed are sent again."""
        again = [call for call in calls if call.is_unprocessed and call.resends < _MAX_RESENDS]
        if again:
            with self._lock:
                for call in again:
                    call.renew()
                refused = [call for call in again if not self._begin(call, self._clock())]
            calls = [call for call in calls if call not in again] + refused
        finish(calls)

    def _lost(self, link: Link, text: str, code: Any = 0) -> None:
        with self._lock:
            if link not in self._links:
                return
            self._links.remove(link)
            ended = link.core.close(text, code)
            if not link.has_answered:
                self._failed_to_connect(text)
            last = link.take() if not link.is_sending else b""
        self._io.watch(link.socket, 0, _nothing)
        with contextlib.suppress(OSError):
            link.socket.send(last)
        close_quietly(link.socket)
        self._end(ended)

    # --- The end.

    def refuse(self) -> None:
        """Start no calls any more."""
        self._is_closed = True

    def close(self) -> None:
        """Cancel all calls, and close the connection; on the I/O thread."""
        with self._lock:
            calls: list[Any] = list(self._waiting)
            self._waiting.clear()
            links = list(self._links)
            for call in calls:
                call.end(Status.CANCELLED, "Channel closed!")
        finish(calls)
        for link in links:
            self._lost(link, "Channel closed!")


def _expire(connector: weakref.ref[Connector]) -> None:
    # A timer of a minute must not keep what belongs to a publisher that is gone.
    if (one := connector()) is not None:
        one.expire()


def _nothing(_events: int) -> None:
    """Take in no events."""


class Http2Channel:
    """A connection that is closed with its owner, however that goes."""

    def __init__(self, connector: Connector, io: IoThread) -> None:
        self.connector = connector
        self._io = io

    def close(self) -> None:
        """Close it; its calls end soon."""
        # Neither takes a lock, for a finalizer may run anywhere.
        self.connector.refuse()
        self._io.call(self.connector.close)

    __del__ = close
