"""The Publish call: records it, lets the script decide, stores and answers now, later or never.

All of it happens on the server's thread, but for what the test asks. A held call costs an entry in
that thread's heap instead of a blocked thread, so thousands can be held at once.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import grpc
import proto
from google.protobuf import timestamp_pb2
from google.protobuf.message import DecodeError
from google.pubsub_v1 import types

from hedged_pubsub._google.core_server import CoreServer, ServerCall
from hedged_pubsub.testing import faults
from hedged_pubsub.testing.broker import Broker, StatusError, invalid
from hedged_pubsub.testing.proxy import TcpProxy
from hedged_pubsub.testing.records import Attempt, Outcome
from hedged_pubsub.testing.services import fail

_PublishRequest = types.PublishRequest.pb()
_PublishResponse = types.PublishResponse.pb()

_TELEMETRY_HEADER: Final = "x-goog-pubsub-client-telemetry"

# The service's limits for one Publish request, and for each of its messages.
_MAX_REQUEST_BYTES: Final = 10_000_000
_MAX_MESSAGES: Final = 1_000
_MAX_ATTRIBUTES: Final = 100
_MAX_NAME_BYTES: Final = 256
_MAX_VALUE_BYTES: Final = 1_024

# gRPC reports a call without a deadline as one that has decades left.
_NO_DEADLINE: Final = 1e8


class _PublishOperation(proto.Message):  # type: ignore[misc]
    hedged_attempt_count = proto.Field(proto.INT32, number=1)
    publish_start_time = proto.Field(timestamp_pb2.Timestamp, number=2)


class _ClientTelemetry(proto.Message):  # type: ignore[misc]
    """What the header holds; older releases of google-cloud-pubsub have no type for it."""

    publish_operation = proto.Field(_PublishOperation, number=1)


_TelemetryProto = _ClientTelemetry.pb()


def decode_telemetry(header: str | bytes) -> tuple[int | None, float | None]:
    """Return an attempt's number and publish start time; None for what the header does not tell."""
    try:
        telemetry = _TelemetryProto.FromString(base64.b64decode(header, validate=True))
    except (ValueError, DecodeError):
        return None, None
    operation = telemetry.publish_operation
    start = operation.publish_start_time.ToNanoseconds() / 1e9
    return (
        operation.hedged_attempt_count if telemetry.HasField("publish_operation") else None,
        start if operation.HasField("publish_start_time") else None,
    )


class _OpenCall:
    """A Publish call: its `Attempt` while that is written, and how to answer it."""

    def __init__(self, call: ServerCall, request: bytes) -> None:
        self.arrival = time.monotonic()
        self.call: Any = call
        self.request: Any = _PublishRequest.FromString(request)
        self.size = len(request)
        self.ids: list[str] | None = None  # of the messages, once they are stored
        self.number = 0
        self.topic: str = self.request.topic
        self.message_count = len(self.request.messages)
        self.peer = call.peer
        self.metadata = call.metadata
        header = dict(call.metadata).get(_TELEMETRY_HEADER, b"")
        self.attempt_number, self.publish_start_time = decode_telemetry(header)
        remaining = call.time_remaining()
        self.timeout = None if remaining > _NO_DEADLINE else remaining
        self.fault: str | None = None
        self.outcome: Outcome = "pending"
        self.code: str | None = None
        self.ended: float | None = None

    def end(self, outcome: Outcome, code: grpc.StatusCode | None = None) -> None:
        self.outcome = outcome
        self.code = None if code is None else code.name
        self.ended = time.monotonic()
        # The record lives on; the request and gRPC's objects need not.
        self.request = self.call = None

    def record(self) -> Attempt:
        fields = {name: getattr(self, name) for name in Attempt.__dataclass_fields__}
        # Plain pairs, which any process can unpickle.
        return Attempt(**{**fields, "metadata": tuple(map(tuple, self.metadata))})


class PublishService:
    """Answers Publish calls as a script says and records them."""

    server: CoreServer  # that it is a method of; set before it starts

    def __init__(self, broker: Broker, script: faults.FaultScript) -> None:
        self._broker = broker
        self.relay: TcpProxy | None = None  # in front of the server, if there is one
        # Guards the decider, the list of calls and every call's way from pending to its outcome.
        self._lock = threading.Lock()
        self._calls: list[_OpenCall] = []
        self.set_script(script)

    def set_script(self, script: faults.FaultScript) -> None:
        """Replace the script and number calls from 1 again; calls that are held stay so."""
        with self._lock:
            self._decider = faults.FaultDecider(script)
            self._number = 0
            self._script_set = time.monotonic()

    def attempts(self, topic: str | None) -> tuple[Attempt, ...]:
        """Return the calls in order of arrival; of one topic (its path) or of all."""
        with self._lock:
            return tuple(c.record() for c in self._calls if topic in (None, c.topic))

    def clear(self) -> None:
        """Forget the records; calls that are held go on without one."""
        with self._lock:
            self._calls.clear()

    def publish(self, server_call: ServerCall, message: bytes) -> None:
        """Handle a call: the method Publish."""
        call = _OpenCall(server_call, message)
        connection = None if self.relay is None else self.relay.connection_of(call.peer)
        if connection is not None:  # the client's own address, in front of the relay
            call.peer = f"ipv4:{connection.client_address}"
        with self._lock:
            self._number += 1
            call.number = self._number
            elapsed = call.arrival - self._script_set
            met = self._decider.decide(
                faults.Call(call.number, call.topic, call.attempt_number, elapsed)
            )
            self._calls.append(call)
        if server_call.is_over:
            self._ended(call)
            return
        server_call.when_over = partial(self._ended, call)
        try:
            _check(call.request, call.size)
            self._broker.check_topic(call.topic)
        except StatusError as rejection:
            self._fail(call, rejection)
            return
        call.fault = None if isinstance(met, float) else type(met).__name__
        match met:
            case float(seconds) | faults.Stall(seconds=seconds):
                self._after(seconds, call, self._answer)
            case faults.StoreThenStall(seconds=seconds):
                if self._store(call):
                    self._after(seconds, call, self._answer)
            case faults.Status(code=code, after=after, retry_after=retry_after):
                text = f"the fault script fails call {call.number}"
                error = StatusError(code, text, retry_after)
                self._after(after, call, partial(self._fail, error=error))
            case faults.DropReply():
                if self._store(call):
                    self._drop(call)
            case faults.TooFewIds():
                if ids := self._store(call):
                    call.ids = ids[:-1]
                    self._answer(call)
            case faults.ResetConnection():
                self._drop(call)
                if connection is not None:
                    connection.reset()

    def _after(self, seconds: float, call: _OpenCall, act: Callable[[_OpenCall], object]) -> None:
        if seconds <= 0:
            act(call)
        else:
            self.server.call_at(call.arrival + seconds, partial(act, call))

    def _store(self, call: _OpenCall) -> list[str] | None:
        """Store the messages and return their ids; None if the call has ended, or ends so."""
        try:
            # Under the lock, so that a call is either cancelled or stored, whichever is first.
            with self._lock:
                if call.outcome != "pending":
                    return None
                call.ids = self._broker.publish(
                    call.topic,
                    call.request.messages,
                    attempt_number=call.attempt_number,
                    call=call.number,
                )
        except StatusError as error:  # the topic was deleted meanwhile
            self._fail(call, error)
        return call.ids

    def _answer(self, call: _OpenCall) -> None:
        """Answer, after storing the messages unless that is done."""
        ids = self._store(call) if call.ids is None else call.ids
        server_call = call.call
        if ids is not None and self._end(call, "answered"):
            server_call.end(message=_PublishResponse(message_ids=ids).SerializeToString())

    def _fail(self, call: _OpenCall, error: StatusError) -> None:
        server_call = call.call
        if self._end(call, "failed", error.code):
            fail(server_call, error)

    def _drop(self, call: _OpenCall) -> None:
        with self._lock:
            if call.outcome == "pending":
                call.outcome = "dropped"  # not ended: gRPC's objects must stay for that

    def _ended(self, call: _OpenCall) -> None:
        with self._lock:
            if call.ended is None:
                call.end("cancelled" if call.outcome == "pending" else call.outcome)

    def _end(self, call: _OpenCall, outcome: Outcome, code: grpc.StatusCode | None = None) -> bool:
        """End a call that is pending; tell whether it was."""
        with self._lock:
            was_pending = call.outcome == "pending"
            if was_pending:
                call.end(outcome, code)
        return was_pending


def _check(request: Any, size: int) -> None:
    if size > _MAX_REQUEST_BYTES:
        raise invalid(f"the request has {size} bytes, more than {_MAX_REQUEST_BYTES}")
    if not request.messages:
        raise invalid("the request has no messages")
    if len(request.messages) > _MAX_MESSAGES:
        raise invalid(f"the request has {len(request.messages)} messages, at most {_MAX_MESSAGES}")
    for index, message in enumerate(request.messages):
        if message.attributes:
            _check_attributes(f"messages[{index}]", message.attributes)
        elif not message.data:
            raise invalid(f"messages[{index}] has neither data nor attributes; one is needed")
        if message.ordering_key:
            _at_most(_MAX_VALUE_BYTES, f"messages[{index}].ordering_key", message.ordering_key)


def _check_attributes(where: str, attributes: Mapping[str, str]) -> None:
    if len(attributes) > _MAX_ATTRIBUTES:
        raise invalid(f"{where} has {len(attributes)} attributes, more than {_MAX_ATTRIBUTES}")
    for name, value in attributes.items():
        _at_most(_MAX_NAME_BYTES, f"the name of an attribute of {where}", name)
        _at_most(_MAX_VALUE_BYTES, f"{where}.attributes[{name!r}]", value)


def _at_most(limit: int, name: str, text: str) -> None:
    # A letter has four bytes at most, so few texts need to be encoded.
    if len(text) * 4 > limit and (size := len(text.encode())) > limit:
        raise invalid(f"{name} has {size} bytes, more than {limit}")
