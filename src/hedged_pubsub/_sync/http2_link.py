"""One TCP connection of an HTTP/2 channel: connecting, TLS, reading, and writing what is queued."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from hedged_pubsub._google.http2 import Target
from hedged_pubsub._http2.call import Call
from hedged_pubsub._http2.connection import ClientConnection

CONNECT_TIMEOUT: Final = 5.0
"""Seconds for TCP and TLS, as for gRPC's channels."""

_RECEIVE_SIZE: Final = 2**18


class Link:
    """A socket and the protocol on it. Its channel's lock guards all but the system calls.

    Attributes:
        core: The protocol.
        socket: The socket, which one thread reads from.
        is_sending: Whether somebody is about to send, or the socket cannot take more just now.
        unsent: What it could not take.
        has_answered: Whether a call has ended on it by an answer.
        may_ping: Whether it has answered a request since the last ping.
    """

    __slots__ = (
        "_incoming",
        "_outgoing",
        "_tls",
        "core",
        "has_answered",
        "is_sending",
        "may_ping",
        "socket",
        "unsent",
    )

    def __init__(self, target: Target) -> None:
        """Connect. This blocks.

        Raises:
            OSError: If that fails.
        """
        self.core = ClientConnection()
        self.is_sending = False
        self.may_ping = True
        self.has_answered = False
        self.unsent: bytes | memoryview = b""
        self._tls: ssl.SSLObject | None = None
        self.socket = socket.create_connection((target.host, target.port), CONNECT_TIMEOUT)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls is not None:
                self._shake_hands(target.tls, target.host)
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise

    def _shake_hands(self, context: ssl.SSLContext, host: str) -> None:
        # On buffers rather than on the socket: so that two threads read and write at a time,
        # which an SSL connection does not allow, and no lock is held in a system call.
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(self._outgoing.read())
                received = self.socket.recv(_RECEIVE_SIZE)
                if not received:
                    raise ConnectionResetError("the server has closed it while TLS began") from None
                self._incoming.write(received)
            else:
                break
        if tls.selected_alpn_protocol() != "h2":
            raise ssl.SSLError("the server does not speak HTTP/2 (ALPN)")
        self.socket.sendall(self._outgoing.read())
        self._tls = tls

    def take(self) -> bytes:
        """Take out the bytes to send; under the lock."""
        data = self.core.data_to_send()
        if self._tls is None:
            return data
        if data:
            self._tls.write(data)
        return self._outgoing.read() if self._outgoing.pending else b""

    def receive(self) -> bytes | None:
        """Read what has come: the system call. ``None`` for nothing, empty at the end."""
        try:
            return self.socket.recv(_RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return None

    def take_in(self, data: bytes, now: float) -> list[Call]:
        """Take in what was read, under the lock; return the calls that have ended.

        Raises:
            OSError: If TLS is broken or at its end.
            Http2Error: If the protocol is broken.
        """
        if self._tls is None:
            return self.core.receive(data, now)
        self._incoming.write(data)
        parts: list[Any] = []
        try:
            while part := self._tls.read(_RECEIVE_SIZE):
                parts.append(part)
            if not parts:
                raise ConnectionResetError("the server has ended TLS")
        except ssl.SSLWantReadError:
            pass
        return self.core.receive(b"".join(parts), now) if parts else []
