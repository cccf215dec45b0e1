"""The HTTP/2 connection of the client, against h2 as the server: what each rule is about."""

from __future__ import annotations

import base64
import struct

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedged_pubsub._http2 import frames, grpc, headers
from hedged_pubsub._http2.call import MAX_MESSAGE, Call, pack_prefix
from hedged_pubsub._http2.connection import CONNECTION_WINDOW
from hedged_pubsub._http2.frames import ErrorCode, Http2Error
from hedged_pubsub._http2.grpc import Status
from hedged_pubsub._http2.outgoing import MAX_REPLIES
from tests.unit.http2.fuzz import Fuzzer
from tests.unit.http2.server import ANSWER, REQUEST, Server

UNLIMITED = {frames.MAX_CONCURRENT_STREAMS: 2**31 - 1}


def connected(settings: dict[int, int] | None = None) -> Server:
    """A server and a client that have exchanged their settings."""
    server = Server(settings)
    server.exchange()
    return server


def block(*fields: tuple[bytes, bytes]) -> bytes:
    """A header block of an answer."""
    return headers.encode(fields)


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """A frame, whatever it is worth."""
    return frames.head(len(body), kind, flags, stream_id) + body


# --- What is sent, and what is made of the answers.


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=6),
    answers=st.lists(st.integers(0, 20_000), min_size=6, max_size=6),
    window=st.integers(1000, 100_000),
    max_frame=st.integers(16_384, 40_000),
    max_streams=st.integers(1, 4),
    pad=st.none() | st.integers(0, 255),
    piece=st.sampled_from([0, 100, 1000, 20_000]),
)
def test_h2_understands_every_request_and_its_answers_are_understood(
    sizes: list[int],
    answers: list[int],
    window: int,
    max_frame: int,
    max_streams: int,
    pad: int | None,
    piece: int,
) -> None:
    """Whatever the server's windows and limits are, and however bytes are cut: none is lost."""
    server = Server({3: max_streams, 4: window, 5: max_frame})
    messages = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    calls = [server.call(message) for message in messages]
    server.exchange(piece)
    answered: set[int] = set()
    while todo := server.whole - answered:
        assert len(server.requests) - len(answered) <= max_streams
        for stream_id in todo:
            index = calls.index(next(call for call in calls if call.stream_id == stream_id))
            server.answer(stream_id, bytes([index + 101]) * answers[index], pad)
        answered |= todo
        server.exchange(piece)

    assert [call.code for call in calls] == [0] * len(calls)
    assert sorted(map(id, server.ended)) == sorted(map(id, calls))
    for index, (call, message) in enumerate(zip(calls, messages, strict=True)):
        fields, received = server.requests[call.stream_id]
        assert bytes(received) == pack_prefix(0, len(message)) + message
        assert fields[b":path"] == b"/google.pubsub.v1.Publisher/Publish"
        assert fields[b"user-agent"] == b"test/" + b"1" * 150
        assert call.answer == bytes([index + 101]) * answers[index]
    assert (server.client.in_flight, server.client.waiting) == (0, 0)


def test_nothing_is_sent_for_a_call_before_the_settings_of_the_server() -> None:
    """A server that never answers has seen no request: all can be sent elsewhere."""
    server = Server()
    call = server.call()
    assert not server.client.is_ready
    server.h2.receive_data(server.client.data_to_send())  # of the preface alone

    assert server.client.close("connection reset") == [call]
    assert (call.code, call.is_unprocessed) == (Status.UNAVAILABLE, True)


def test_answers_far_beyond_the_window_go_on_as_calls_end() -> None:
    """The window of the connection is opened for what has ended, and for nothing else."""
    server = connected(UNLIMITED)
    for _ in range(CONNECTION_WINDOW // MAX_MESSAGE + 2):
        server.call()
        server.exchange()
        server.answer(max(server.requests), bytes(MAX_MESSAGE))
        server.exchange()
    assert {call.code for call in server.ended} == {0}

    held, limit = server.call(), 65_000
    server.exchange()
    server.h2.send_headers(held.stream_id, ANSWER)
    before = server.h2.outbound_flow_control_window
    for _ in range(40):
        server.h2.send_data(held.stream_id, pack_prefix(0, MAX_MESSAGE)[: limit // 13_000])
    server.exchange()
    assert server.h2.outbound_flow_control_window == before - 200


def test_a_block_of_headers_larger_than_a_frame_is_continued() -> None:
    """However large the metadata of a user is, the server understands them."""
    server = connected()
    value = b"v" * 40_000
    server.h2.max_inbound_frame_size = 16_384
    call = Call(REQUEST + headers.encode([(b"x-large", value)]), b"")
    server.client.start(call)
    server.h2.decoder.max_header_list_size = 2**17
    server.exchange()

    assert server.requests[call.stream_id][0][b"x-large"] == value


def test_known_header_blocks_mean_what_they_mean_while_the_table_stays() -> None:
    """A block that is read from memory is read anew once another one has changed the table."""
    server = connected()
    for number in range(3):
        for code in (5, 3, 5, 3):
            call = server.call()
            server.exchange()
            fields = [*ANSWER, ("grpc-status", str(code)), ("grpc-message", f"the {number}th")]
            server.h2.send_headers(call.stream_id, fields, end_stream=True)
            server.exchange()
            assert (call.code, call.details) == (code, f"the {number}th")


# --- Outcomes.


def end(*frames_of_it: bytes) -> Call:
    """A call that these frames have ended."""
    server = connected()
    call = server.call()
    server.exchange()
    assert server.raw(*frames_of_it) == [call]
    return call


HEADERS = block((b":status", b"200"), (b"content-type", b"application/grpc+proto"))
HELLO = frame(frames.DATA, 0, 1, b"\0\0\0\0\5hello")


@pytest.mark.parametrize(
    ("received", "code", "text"),
    [
        ((HEADERS + block((b"grpc-status", b"0")), None), Status.INTERNAL, "no message"),
        ((HEADERS + block((b"grpc-status", b"99")), None), Status.UNKNOWN, ""),
        ((HEADERS + block((b"grpc-status", b"5x")), None), Status.UNKNOWN, ""),
        ((HEADERS, None), Status.UNKNOWN, "without a status"),
        ((block((b":status", b"503")), None), Status.UNAVAILABLE, "status: 503"),
        ((block((b":status", b"418")), None), Status.UNKNOWN, "status: 418"),
        (
            (
                HEADERS + block((b"grpc-status", b"3"), (b"grpc-message", b"100%25 %C3%A9 %zz %")),
                None,
            ),
            3,
            "100% \u00e9 %zz %",
        ),
        ((HEADERS, b"\0\0\0\0\5hello"), Status.INTERNAL, "without a status"),
        ((HEADERS, b"\1\0\0\0\5hello", b"0"), Status.INTERNAL, "compressed"),
        ((HEADERS, b"\0\0\0\0\5hell", b"0"), Status.INTERNAL, "one message"),
        ((HEADERS, b"\0\0\0\0\5hello\0", b"0"), Status.INTERNAL, "one message"),
        ((HEADERS, b"\0\0\0\0\5hello", b"7"), Status.PERMISSION_DENIED, ""),
    ],
)
def test_what_an_answer_means(received: tuple[bytes | None, ...], code: int, text: str) -> None:
    """Trailers alone, HTTP's status, no status, no message: each has its gRPC status."""
    first, data, *status = received
    assert first is not None
    sent = [frame(frames.HEADERS, 4 if data else 5, 1, first)]
    if data:
        sent.append(frame(frames.DATA, 0 if status else 1, 1, data))
    if status:
        sent.append(frame(frames.HEADERS, 5, 1, block((b"grpc-status", status[0] or b""))))

    call = end(*sent)

    assert call.code == code
    assert text in call.details


def test_an_answer_without_grpc_ends_the_call_and_resets_its_stream() -> None:
    """Nobody waits for the rest of a page of HTML, or of a message that is too large."""
    server = connected()
    html, large = server.call(), server.call()
    server.exchange()
    server.h2.send_headers(html.stream_id, [(":status", "200"), ("content-type", "text/html")])
    server.h2.send_headers(large.stream_id, ANSWER)
    server.h2.send_data(large.stream_id, pack_prefix(0, MAX_MESSAGE + 1))
    server.exchange()

    assert (html.code, large.code) == (Status.UNKNOWN, Status.RESOURCE_EXHAUSTED)
    assert server.resets == [html.stream_id, large.stream_id]


def test_informational_answers_come_first_and_mean_nothing() -> None:
    """However many there are of them."""
    early = frame(frames.HEADERS, 4, 1, block((b":status", b"103"), (b"link", b"</a>")))
    call = end(
        *[early] * 5,
        frame(frames.HEADERS, 4, 1, HEADERS),
        HELLO,
        frame(frames.HEADERS, 5, 1, block((b"grpc-status", b"0"))),
    )
    assert (call.code, call.answer) == (0, b"hello")


@pytest.mark.parametrize(
    ("reset", "code", "unprocessed"),
    [
        (ErrorCode.REFUSED_STREAM, Status.UNAVAILABLE, True),
        (ErrorCode.CANCEL, Status.CANCELLED, False),
        (ErrorCode.ENHANCE_YOUR_CALM, Status.RESOURCE_EXHAUSTED, False),
        (ErrorCode.NO_ERROR, Status.INTERNAL, False),
        (4711, Status.INTERNAL, False),
    ],
)
def test_what_a_reset_means(reset: int, code: int, *, unprocessed: bool) -> None:
    """A refused stream has not been processed; the rest may have been."""
    call = end(frame(frames.RST_STREAM, 0, 1, struct.pack(">I", reset)))
    assert (call.code, call.is_unprocessed) == (code, unprocessed)


def test_metadata_of_an_error() -> None:
    """Binary values are decoded, with or without padding; what is none is left out."""
    details = base64.b64encode(b"\x08\x0e").rstrip(b"=") + b"," + base64.b64encode(b"two!")
    fields = [
        (b"grpc-status", b"8"),
        (b"grpc-status-details-bin", details),
        (b"broken-bin", b"a"),
        (b"plain", b"text"),
    ]
    call = end(frame(frames.HEADERS, 5, 1, HEADERS + block(*fields)))
    assert call.trailing_metadata()[2:] == (
        ("grpc-status-details-bin", b"\x08\x0e"),
        ("grpc-status-details-bin", b"two!"),
        ("plain", "text"),
    )


# --- Cancelling, deadlines, pings.


def test_a_cancelled_call_is_reset_and_its_answer_is_ignored() -> None:
    """Its headers are decoded all the same, for they may change the table for others."""
    server = connected()
    lost, kept = server.call(), server.call()
    server.exchange()
    server.answer(lost.stream_id, b"late")
    crossing = server.h2.data_to_send()
    server.client.cancel(lost)
    server.client.cancel(lost)
    assert server.raw(crossing) == []
    server.exchange()
    server.answer(kept.stream_id, b"in time")
    server.exchange()

    assert (lost.code, kept.code, kept.answer) == (Status.CANCELLED, 0, b"in time")
    assert server.ended == [kept]


def test_calls_end_at_their_deadlines_wherever_they_are() -> None:
    """In flight or waiting; and the next deadline is known."""
    server = connected({3: 1})
    calls = [server.call(deadline=when) for when in (7.0, 5.0, 9.0)]
    server.exchange()
    assert server.client.next_deadline == 5.0
    assert server.client.expire(4.9) == []
    assert server.client.expire(8.0) == calls[:2]
    server.exchange()
    server.answer(calls[2].stream_id, b"")
    server.exchange()

    assert [call.code for call in calls] == [Status.DEADLINE_EXCEEDED] * 2 + [0]
    assert server.resets == [calls[0].stream_id]
    assert server.client.expire(10.0) == []
    assert server.client.next_deadline > 1e9


def test_a_message_that_the_window_holds_back_is_dropped_with_its_call() -> None:
    """What is cancelled is not sent once the window opens."""
    server = connected({4: 10})
    server.opens_windows = False
    first, _ = server.call(b"1" * 50), server.call(b"2" * 50)
    server.exchange()
    server.client.cancel(first)
    server.exchange()
    for stream_id in (1, 3):
        server.raw(frames.window_update(stream_id, 100))

    assert frames.head(45, frames.DATA, 1, 3) in server.client.data_to_send()
    assert len(server.requests[first.stream_id][1]) == 10
    assert not server.client._out._held_back


def test_a_ping_is_outstanding_until_its_own_answer() -> None:
    """Another server's opaque data is no answer; one ping at a time."""
    server = connected()
    server.client.ping(3.0)
    server.client.ping(4.0)
    assert server.ping_sent_at == 3.0
    server.raw(frame(frames.PING, 1, 0, b"whatever"))
    assert server.ping_sent_at == 3.0
    server.now = 5.0
    server.exchange()
    assert server.client.ping_sent_at is None
    assert server.client.heard_at == 5.0


# --- Going away.


def test_goaway_ends_what_the_server_will_not_process_and_nothing_else() -> None:
    """So every batch is answered here, or can be sent again elsewhere without a doubt."""
    server = connected({3: 3})
    calls = [server.call() for _ in range(5)]
    server.exchange()
    ended = server.raw(frame(frames.GOAWAY, 0, 0, struct.pack(">II", 3, 11) + b"too_many_pings"))
    server.answer(1, b"one")
    server.answer(3, b"three")
    server.exchange()

    assert server.client.is_closing
    assert server.client.goaway == (ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
    assert ended == calls[2:]
    assert {(call.code, call.is_unprocessed) for call in ended} == {(Status.UNAVAILABLE, True)}
    assert [call.answer for call in calls[:2]] == [b"one", b"three"]


def test_a_connection_that_ends_ends_all_calls() -> None:
    """Those without a stream were certainly not processed."""
    server = connected({3: 1})
    sent, waits = server.call(), server.call()
    server.exchange()
    assert server.client.close("connection reset by peer") == [sent, waits]
    assert (sent.is_unprocessed, waits.is_unprocessed) == (False, True)
    assert (sent.code, sent.details) == (Status.UNAVAILABLE, "connection reset by peer")
    assert server.client.close("again") == []
    assert server.raw(frame(frames.PING, 0, 0, bytes(8))) == []


def test_numbers_of_streams_run_out() -> None:
    """The last one is used, and what waits is refused: another connection has to take over."""
    server = connected({3: 1})
    server.client._next_id = frames.MAX_STREAM_ID
    last, next_one = server.call(), server.call()
    assert last.stream_id == frames.MAX_STREAM_ID
    assert server.client.is_closing
    ended = server.raw(frame(frames.HEADERS, 5, last.stream_id, HEADERS))
    assert ended == [last, next_one]
    assert next_one.is_unprocessed


# --- What no server should send.


OPEN = frame(frames.HEADERS, 4, 1, HEADERS)
VIOLATIONS = {
    "a large frame": [frame(frames.PING, 0, 0, bytes(16_385))],
    "an idle stream": [frame(frames.HEADERS, 5, 9, HEADERS)],
    "a stream of the server's": [frame(frames.RST_STREAM, 0, 2, bytes(4))],
    "data first": [HELLO],
    "data for the connection": [frame(frames.DATA, 0, 0, b"")],
    "only padding": [OPEN, frame(frames.DATA, 8, 1, b"\x05abc")],
    "headers without status": [frame(frames.HEADERS, 5, 1, block((b"grpc-status", b"0")))],
    "two statuses": [frame(frames.HEADERS, 4, 1, block((b":status", b"200")) * 2)],
    "trailers that go on": [OPEN, frame(frames.HEADERS, 4, 1, block((b"grpc-status", b"0")))],
    "a status in trailers": [OPEN, frame(frames.HEADERS, 5, 1, HEADERS)],
    "switching protocols": [frame(frames.HEADERS, 4, 1, block((b":status", b"101")))],
    "an end with 1xx": [frame(frames.HEADERS, 5, 1, block((b":status", b"103")))],
    "upper case": [frame(frames.HEADERS, 5, 1, block((b":status", b"200"), (b"A", b"")))],
    "a line break": [frame(frames.HEADERS, 5, 1, block((b":status", b"200"), (b"a", b"\n")))],
    "broken hpack": [frame(frames.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff")],
    "a header bomb": [
        frame(frames.HEADERS, 5, 1, b"\x40\x01a\x7f\x81\x1f" + bytes(4096) + b"\xbe" * 99)
    ],
    "another frame within a block": [frame(frames.HEADERS, 1, 1, b""), frame(6, 0, 0, bytes(8))],
    "a continuation of nothing": [frame(frames.CONTINUATION, 4, 1, b"")],
    "continuations without end": [frame(1, 1, 1)] + [frame(frames.CONTINUATION, 0, 1)] * 32,
    "a block without end": [frame(1, 1, 1)] + [frame(9, 0, 1, bytes(16_384))] * 3,
    "a push": [frame(frames.PUSH_PROMISE, 4, 1, bytes(4))],
    "settings of a stream": [frame(frames.SETTINGS, 0, 1)],
    "half a setting": [frame(frames.SETTINGS, 0, 0, bytes(5))],
    "an acknowledgement with settings": [frame(frames.SETTINGS, 1, 0, bytes(6))],
    "a setting to push": [frames.settings({2: 1})],
    "a window too large": [frames.settings({4: 2**31})],
    "a frame size too small": [frames.settings({5: 16_383})],
    "a window of 0 more": [frames.window_update(0, 0)],
    "a window that overflows": [frames.window_update(0, 2**31 - 1)],
    "a stream's window that overflows": [frames.window_update(1, 2**31 - 1)],
    "settings that overflow": [frames.window_update(1, 2**30), frames.settings({4: 2**30 + 100})],
    "a short ping": [frame(frames.PING, 0, 0, bytes(7))],
    "a ping of a stream": [frame(frames.PING, 0, 1, bytes(8))],
    "a short reset": [frame(frames.RST_STREAM, 0, 1, bytes(3))],
    "a short goaway": [frame(frames.GOAWAY, 0, 0, bytes(7))],
    "a goaway of a stream": [frame(frames.GOAWAY, 0, 1, bytes(8))],
    "a short update": [frame(frames.WINDOW_UPDATE, 0, 1, bytes(3))],
    "a short priority": [frame(frames.PRIORITY, 0, 1, bytes(3))],
    "a flood of pings": [frame(frames.PING, 0, 0, bytes(8))] * (MAX_REPLIES + 1),
    "a flood of settings": [frame(frames.SETTINGS, 0, 0)] * (MAX_REPLIES + 1),
    "a flood of early hints": [
        frame(frames.HEADERS, 4, 1, block((b":status", b"103"))) for _ in range(13)
    ],
    "a flood of data": [OPEN] + [frame(frames.DATA, 0, 1, bytes(16_384))] * 300,
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_violation_ends_the_connection_and_says_why(violation: str) -> None:
    """Calls fail as if the connection was lost, and the server is told with a GOAWAY."""
    server = connected()
    call = server.call()
    server.exchange()
    with pytest.raises(Http2Error) as caught:
        server.raw(*VIOLATIONS[violation])
    error = caught.value
    assert server.client.close(str(error), error.code) == [call]
    assert call.code == Status.UNAVAILABLE
    assert call.details == str(error) != ""
    assert server.client.data_to_send().endswith(frames.goaway(error.code))


def test_calls_that_have_ended_before_a_violation_are_not_lost() -> None:
    """Their messages are stored: they count as such, though it came with the violation."""
    server = connected()
    first, second = server.call(), server.call()
    server.exchange()
    server.answer(first.stream_id, b"stored")
    with pytest.raises(Http2Error):
        server.raw(server.h2.data_to_send(), frame(frames.PUSH_PROMISE, 4, 1, bytes(4)))
    assert server.client.close("refused") == [first, second]
    assert (first.code, second.code) == (0, Status.UNAVAILABLE)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", frames.window_update(0, 1)])
def test_what_is_no_http2_server_is_refused_by_its_first_bytes(said: bytes) -> None:
    """The error quotes what it says, where that is no frame."""
    with pytest.raises(Http2Error, match=r"HTTP/1\.1 400|the first frame is not SETTINGS"):
        Server().client.receive(said, 0.0)


def test_frames_of_unknown_types_and_settings_are_ignored() -> None:
    """And what is said of streams that have ended."""
    server = connected()
    call = server.call()
    server.exchange()
    server.answer(call.stream_id, b"")
    server.exchange()
    gone = [frame(kind, 0, 1, bytes((1, 0, 0, 1))) for kind in (0, 3, 8)]
    assert server.raw(frame(77, 255, 0, b"?"), frames.settings({99: 5}), *gone) == []
    server.exchange()


def test_a_short_fuzz() -> None:
    """No input makes it raise anything else, take a millisecond a kilobyte, or hold too much."""
    Fuzzer(seed=18).run(1000)


# --- Encodings.


@given(st.floats(0, 1e13, allow_subnormal=False) | st.integers(0, 10**9))
def test_timeouts_are_never_encoded_as_less_nor_as_much_more(seconds: float) -> None:
    """Eight digits and a unit, as gRPC wants them."""
    value = grpc.encode_timeout(seconds)
    size = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "H": 3600.0}[chr(value[-1])]
    encoded = int(value[:-1]) * size
    assert len(value) <= 9
    assert encoded >= min(seconds, 3.5e11) * (1 - 1e-12)
    assert encoded <= max(seconds * 1.001, seconds + 1.1e-6)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b":path", b"authorization", b"x-any", b"user-agent", b"n" * 300]),
            st.binary(max_size=300),
        )
    )
)
def test_hpack_decodes_what_is_encoded(fields: list[tuple[bytes, bytes]]) -> None:
    """Names from the static table and others, short and long; and nothing enters the table."""
    decoder = hpack.Decoder(2**20)
    assert list(decoder.decode(headers.encode(fields), raw=True)) == fields
    assert not decoder.header_table.dynamic_entries
