"""The server's end of a connection for the tests: h2, which checks all that the client sends."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.settings

from hedged_pubsub._http2 import headers
from hedged_pubsub._http2.call import Call, pack_prefix
from hedged_pubsub._http2.connection import ClientConnection

ANSWER = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]
REQUEST = headers.encode(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/google.pubsub.v1.Publisher/Publish"),
        (b":authority", b"localhost:8085"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"test/" + b"1" * 150),
        (b"authorization", b"Bearer token"),
    ]
)


class Server:
    """A server that h2 speaks for, and the client that is tested, without a network between.

    Attributes:
        requests: The headers and the messages that came in, by stream.
        whole: The streams whose requests are whole.
        resets: The streams that the client has reset.
        ended: The calls that have ended at the client, in their order.
        now: The time that the client is told.
        opens_windows: Whether what was received is received again.
    """

    def __init__(self, settings: dict[int, int] | None = None) -> None:
        self.client = ClientConnection()
        self.requests: dict[int, tuple[dict[bytes, bytes], bytearray]] = {}
        self.whole: set[int] = set()
        self.resets: list[int] = []
        self.ended: list[Call] = []
        self.now = 0.0
        self.opens_windows = True
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        values = {h2.settings.SettingCodes(key): value for key, value in (settings or {}).items()}
        self.h2.local_settings = h2.settings.Settings(client=False, initial_values=values)
        self.h2.max_inbound_frame_size = self.h2.local_settings.max_frame_size
        self.h2.initiate_connection()

    @property
    def ping_sent_at(self) -> float | None:
        """When the client has sent the ping that is not answered yet."""
        return self.client.ping_sent_at

    def call(self, message: bytes = b"a request", deadline: float = 1e9) -> Call:
        """Start a call at the client."""
        call = Call(REQUEST, message, deadline)
        self.client.start(call)
        return call

    def exchange(self, piece: int = 0) -> None:
        """Let bytes go both ways, in pieces of a size, until none are left."""
        while True:
            sent = self.client.data_to_send()
            for event in self.h2.receive_data(sent) if sent else ():
                self._take(event)
            answer = self.h2.data_to_send()
            if not sent and not answer:
                return
            size = piece or len(answer) or 1
            for at in range(0, len(answer), size):
                self.ended += self.client.receive(answer[at : at + size], self.now)

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.requests[event.stream_id] = dict(event.headers), bytearray()
        elif isinstance(event, h2.events.DataReceived):
            self.requests[event.stream_id][1].extend(event.data)
            if self.opens_windows:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.whole.add(event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.resets.append(event.stream_id)

    def answer(self, stream_id: int, message: bytes = b"", pad: int | None = None) -> None:
        """Answer a request as gRPC does; of a message as much as the windows allow."""
        self.h2.send_headers(stream_id, ANSWER)
        data = pack_prefix(0, len(message)) + message
        for at in range(0, len(data), 16_000):
            self.h2.send_data(stream_id, data[at : at + 16_000], pad_length=pad)
        self.h2.send_headers(stream_id, OK, end_stream=True)

    def raw(self, *frames: bytes) -> list[Call]:
        """Send the client something that h2 would refuse to send."""
        return self.client.receive(b"".join(frames), self.now)
