"""The Publish call: records it, lets the script decide, stores and answers now, later or never.

The call is registered as one that may answer more than once and from any thread (on the wire, one
answer looks the same as that of a plain call). So a held call costs an entry in the timer's heap
instead of a blocked thread, and thousands can be held at once.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
from google.pubsub_v1 import types

from hedged_pubsub.testing import telemetry_header
from hedged_pubsub.testing.broker import Broker, StatusError
from hedged_pubsub.testing.faults import (
    Call,
    DropReply,
    Fault,
    FaultDecider,
    FaultScript,
    ResetConnection,
    Stall,
    Status,
    StoreThenStall,
    TooFewIds,
)
from hedged_pubsub.testing.records import Attempt, Outcome
from hedged_pubsub.testing.threads import DaemonPool, Timer

_PublishRequest = types.PublishRequest.pb()
_PublishResponse = types.PublishResponse.pb()

MAX_REQUEST_BYTES = 10_000_000
"""The service's limit for one Publish request."""

# gRPC reports a call without a deadline as one that has decades left.
_NO_DEADLINE = 1e8


class _SizedRequest:
    """A request with its size on the wire, known for free when it arrives."""

    __slots__ = ("proto", "size")

    def __init__(self, serialized: bytes) -> None:
        self.size = len(serialized)
        self.proto = _PublishRequest.FromString(serialized)


class _OpenCall:
    """A Publish call: its record while it is written, and how to answer it."""

    __slots__ = (
        "arrival",
        "attempt_number",
        "code",
        "context",
        "ended",
        "fault",
        "ids",
        "message_count",
        "metadata",
        "number",
        "outcome",
        "peer",
        "publish_start_time",
        "request",
        "send",
        "timeout",
        "topic",
    )

    def __init__(
        self, request: _SizedRequest, context: grpc.ServicerContext, send: Callable[[Any], None]
    ) -> None:
        self.arrival = time.monotonic()
        self.context: Any = context
        self.send: Any = send
        self.request: Any = request
        self.topic: str = request.proto.topic
        self.message_count = len(request.proto.messages)
        self.metadata = context.invocation_metadata() or ()
        self.attempt_number: int | None = None
        self.publish_start_time: float | None = None
        for key, value in self.metadata:
            if key == telemetry_header.HEADER and (decoded := telemetry_header.decode(value)):
                self.attempt_number, self.publish_start_time = decoded
        remaining = context.time_remaining()
        self.timeout = None if remaining is None or remaining > _NO_DEADLINE else remaining
        self.peer: str = context.peer()
        self.number = 0
        self.fault: Fault | None = None
        self.ids: list[str] = []
        self.outcome: Outcome = "pending"
        self.code: str | None = None
        self.ended: float | None = None

    def end(self, outcome: Outcome, code: grpc.StatusCode | None = None) -> None:
        self.outcome = outcome
        self.code = None if code is None else code.name
        self.ended = time.monotonic()
        # The record lives on; the request and gRPC's objects need not.
        self.request = self.context = self.send = None

    def record(self) -> Attempt:
        return Attempt(
            number=self.number,
            topic=self.topic,
            message_count=self.message_count,
            arrival=self.arrival,
            peer=self.peer,
            metadata=tuple((key, value) for key, value in self.metadata),
            attempt_number=self.attempt_number,
            publish_start_time=self.publish_start_time,
            timeout=self.timeout,
            fault=None if self.fault is None else type(self.fault).__name__,
            outcome=self.outcome,
            code=self.code,
            ended=self.ended,
        )


class PublishService:
    """Answers Publish calls as a script says and records them.

    Args:
        broker: where the messages go.
        pool: runs what the timer starts.
        timer: wakes held calls.
        script: what happens to the calls.
        client_address: turns the peer gRPC names into the client's own address.
        reset_connection: resets the connection of that peer.
    """

    def __init__(
        self,
        *,
        broker: Broker,
        pool: DaemonPool,
        timer: Timer,
        script: FaultScript,
        client_address: Callable[[str], str],
        reset_connection: Callable[[str], None],
    ) -> None:
        self._broker = broker
        self._pool = pool
        self._timer = timer
        self._client_address = client_address
        self._reset_connection = reset_connection
        # Guards the decider, the list of calls and every call's way from pending to its outcome.
        self._lock = threading.Lock()
        self._calls: list[_OpenCall] = []
        self.set_script(script)

    def method(self) -> grpc.RpcMethodHandler:
        """Returns what to register for the method."""

        def publish(
            request: _SizedRequest, context: grpc.ServicerContext, send: Callable[[Any], None]
        ) -> None:
            self._publish(_OpenCall(request, context, send))

        # gRPC's own mark for a method that gets a callback to answer with, from any thread.
        publish.experimental_non_blocking = True  # type: ignore[attr-defined]
        return grpc.unary_stream_rpc_method_handler(
            publish,
            request_deserializer=_SizedRequest,
            response_serializer=_PublishResponse.SerializeToString,
        )

    def set_script(self, script: FaultScript) -> None:
        """Replaces the script; calls that are held already stay so. Call numbers start anew."""
        with self._lock:
            self._decider = FaultDecider(script)
            self._number = 0
            self._script_set = time.monotonic()

    def attempts(self, topic: str | None) -> tuple[Attempt, ...]:
        """Returns the calls in order of arrival; of one topic (its path) or of all."""
        with self._lock:
            return tuple(c.record() for c in self._calls if topic is None or c.topic == topic)

    def clear(self) -> None:
        """Forgets the records; calls that are held go on without one."""
        with self._lock:
            self._calls.clear()

    def _publish(self, call: _OpenCall) -> None:
        request = call.request  # the client's cancel may let go of it at any moment
        raw_peer = call.peer
        call.peer = self._client_address(raw_peer)
        with self._lock:
            self._number += 1
            call.number = self._number
            elapsed = call.arrival - self._script_set
            decision = self._decider.decide(
                Call(call.number, call.topic, call.attempt_number, elapsed)
            )
            self._calls.append(call)
        # gRPC calls this at the end of every call, and says False if that has passed already.
        if not call.context.add_callback(functools.partial(self._ended, call)):
            self._ended(call)
            return
        try:
            self._check(request, call.topic)
        except StatusError as rejection:
            self._fail(call, rejection)
            return
        call.fault = decision.fault
        match decision.fault:
            case None:
                self._after(decision.latency, self._store_and_answer, call)
            case Stall(seconds=seconds):
                self._after(seconds, self._store_and_answer, call)
            case StoreThenStall(seconds=seconds):
                if self._store(call):
                    self._after(seconds, self._answer, call)
            case Status(code=code, after=after):
                error = StatusError(code, f"the fault script fails call {call.number}")
                self._after(after, functools.partial(self._fail, error=error), call)
            case DropReply():
                if self._store(call):
                    self._drop(call)
            case TooFewIds():
                if self._store(call):
                    call.ids = call.ids[:-1]
                    self._answer(call)
            case ResetConnection():
                self._drop(call)
                self._reset_connection(raw_peer)

    def _check(self, request: _SizedRequest, topic: str) -> None:
        if request.size > MAX_REQUEST_BYTES:
            raise StatusError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the request has {request.size} bytes; at most {MAX_REQUEST_BYTES} are allowed",
            )
        messages = request.proto.messages
        if not messages:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, "the request has no messages")
        for index, message in enumerate(messages):
            if not message.data and not message.attributes:
                raise StatusError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"messages[{index}] has neither data nor attributes; one of them is needed",
                )
        self._broker.check_topic(topic)

    def _after(
        self, seconds: float, function: Callable[[_OpenCall], object], call: _OpenCall
    ) -> None:
        if seconds <= 0:
            function(call)
        else:
            wake = functools.partial(self._pool.submit, function, call)
            self._timer.call_at(call.arrival + seconds, wake)

    def _store_and_answer(self, call: _OpenCall) -> None:
        if self._store(call):
            self._answer(call)

    def _store(self, call: _OpenCall) -> bool:
        """Stores the messages unless the call has ended; tells whether it did."""
        try:
            # Under the lock, so that a call is either cancelled or stored, whichever is first.
            with self._lock:
                if call.outcome != "pending":
                    return False
                call.ids = self._broker.publish(
                    call.topic,
                    call.request.proto.messages,
                    attempt_number=call.attempt_number,
                    call=call.number,
                )
        except StatusError as error:  # the topic was deleted meanwhile
            self._fail(call, error)
            return False
        return True

    def _answer(self, call: _OpenCall) -> None:
        with self._lock:
            if call.outcome != "pending":
                return
            send, ids = call.send, call.ids
            call.end("answered")
        send(_PublishResponse(message_ids=ids))
        send(None)

    def _fail(self, call: _OpenCall, error: StatusError) -> None:
        with self._lock:
            if call.outcome != "pending":
                return
            send, context = call.send, call.context
            call.end("failed", error.code)
        context.set_code(error.code)
        context.set_details(error.details)
        send(None)

    def _drop(self, call: _OpenCall) -> None:
        with self._lock:
            if call.outcome == "pending":
                call.outcome = "dropped"  # not ended: gRPC's objects must stay for that

    def _ended(self, call: _OpenCall) -> None:
        with self._lock:
            if call.ended is None:
                call.end("cancelled" if call.outcome == "pending" else call.outcome)
