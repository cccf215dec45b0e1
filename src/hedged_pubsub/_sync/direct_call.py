"""Unary RPCs on gRPC's core, without the future that grpcio wraps around each.

``multicallable.future()`` makes a condition, three closures, a state and a rendezvous for every
call, about 40 µs of CPU time. This publisher waits for no call and asks nothing of it but the
answer, so it hands the same six operations to the same function and takes the event itself. gRPC's
own thread delivers it; channels, forks and ``close()`` know no difference.

That function is private to grpcio. Where it does not have exactly the parameters that are known
here, ``future()`` is called instead; the contract tests compare the two.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import grpc
from grpc._cython import cygrpc

_LOGGER = logging.getLogger(__name__)

_KNOWN_PARAMETERS: Final = (
    "flags",
    "method",
    "host",
    "deadline",
    "metadata",
    "credentials",
    {"operations", "operationses"},
    "event_handler",
    "context",
    "_registered_call_handle",  # not in older releases
)
_KNOWN_OPERATIONS: Final = (
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendCloseFromClientOperation",
    "ReceiveInitialMetadataOperation",
    "ReceiveMessageOperation",
    "ReceiveStatusOnClientOperation",
)
_NO_FLAGS: Final = 0
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_CANCELLED: Final = grpc.StatusCode.CANCELLED.value[0]

Start = Callable[..., Any]
"""Takes what ``multicallable.future`` takes and returns a call that may have ended already."""


def direct_start(multicallable: Any) -> Start:
    """Return the cheapest way to start calls of a method on a channel without interceptors.

    Args:
        multicallable: gRPC's, made without a request serializer: requests are bytes.
    """
    if not _is_known(multicallable):
        return cast("Start", multicallable.future)
    managed_call = multicallable._managed_call
    method = multicallable._method
    deserialize = multicallable._response_deserializer
    context = multicallable._context
    handle = getattr(multicallable, "_registered_call_handle", None)
    tail = (context,) if len(inspect.signature(managed_call).parameters) == 9 else (context, handle)
    close = cygrpc.SendCloseFromClientOperation(_NO_FLAGS)  # it holds nothing, so all share it
    fork_epoch = cygrpc.get_fork_epoch

    def start(
        request: bytes,
        timeout: float | None,
        *,
        metadata: Any,
        compression: grpc.Compression | None = None,
    ) -> Any:
        if compression is not None:
            return multicallable.future(
                request, timeout, metadata=metadata, compression=compression
            )
        call = DirectCall(deserialize, fork_epoch())
        operations = (
            cygrpc.SendInitialMetadataOperation(metadata, _NO_FLAGS),
            cygrpc.SendMessageOperation(request, _NO_FLAGS),
            close,
            call.initial_metadata,
            call.message,
            call.status,
        )
        deadline = None if timeout is None else time.time() + timeout
        call.core = managed_call(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method,
            None,
            deadline,
            metadata,
            None,
            (operations,),
            call.take_event,
            *tail,
        )
        return call

    return start


def _is_known(multicallable: Any) -> bool:
    managed_call = getattr(multicallable, "_managed_call", None)
    if type(multicallable) is not grpc._channel._UnaryUnaryMultiCallable or managed_call is None:
        return False
    if any(not hasattr(cygrpc, name) for name in (*_KNOWN_OPERATIONS, "get_fork_epoch")):
        return False
    # Observability plugins want to hear of every call of a future.
    observability = getattr(grpc, "_observability", None)
    if observability is not None and observability._OBSERVABILITY_PLUGIN is not None:
        return False
    names = tuple(inspect.signature(managed_call).parameters)
    return len(names) in (9, 10) and all(
        name in known if isinstance(known, set) else name == known
        for name, known in zip(names, _KNOWN_PARAMETERS, strict=False)
    )


class DirectCall:
    """One RPC: as much of ``grpc.Future`` as the driver needs.

    Attributes:
        core: The call in gRPC's core; set when it was started.
        initial_metadata: The operations that take in the answer; gRPC fills them.
        message: Likewise.
        status: Likewise.
    """

    __slots__ = (
        "_callback",
        "_deserialize",
        "_first",
        "_fork_epoch",
        "core",
        "initial_metadata",
        "message",
        "status",
    )

    def __init__(self, deserialize: Callable[[bytes], Any], fork_epoch: int) -> None:
        self._deserialize = deserialize
        self._fork_epoch = fork_epoch
        # Taken by whoever comes first of the end and the callback; the other one calls.
        self._first = threading.Lock()
        self._callback: Callable[[Any], object] | None = None
        self.core: Any = None
        self.initial_metadata = cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS)
        self.message = cygrpc.ReceiveMessageOperation(_NO_FLAGS)
        self.status = cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` once, when the call has ended; at most one is taken."""
        self._callback = callback
        if not self._first.acquire(blocking=False):
            callback(self)

    def take_event(self, _event: object) -> bool:
        """Take in the end of all operations, on gRPC's thread; say if it is this process's."""
        if not self._first.acquire(blocking=False):
            callback, self._callback = self._callback, None
            try:
                callback(self)  # type: ignore[misc]
            except Exception:
                _LOGGER.exception("the end of a publish request could not be taken in")
        return self._fork_epoch >= cygrpc.get_fork_epoch()  # type: ignore[no-any-return]

    def cancel(self) -> None:
        """Cancel the call if it has not ended."""
        self.core.cancel(_CANCELLED, "Locally cancelled by application!")

    def result(self) -> Any:
        """Return the answer of a call that has ended.

        Raises:
            grpc.RpcError: If it ended in an error.
        """
        code = self.status.code()
        if code != 0:
            self._fail(_CODES.get(code, grpc.StatusCode.UNKNOWN), self.status.details())
        try:
            return self._deserialize(self.message.message())
        except Exception:  # noqa: BLE001 - as grpcio does
            self._fail(grpc.StatusCode.INTERNAL, "Exception deserializing response!")

    def _fail(self, code: grpc.StatusCode, details: str | None) -> NoReturn:
        raise DirectCallError(
            code, details, self.initial_metadata.initial_metadata(), self.status.trailing_metadata()
        )


class DirectCallError(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """The error of a call, with what ``grpc.Call`` promises of one that has ended."""

    def __init__(
        self, code: grpc.StatusCode, details: str | None, initial_metadata: Any, trailing: Any
    ) -> None:
        super().__init__(code, details)
        self._code = code
        self._details = details
        self._initial_metadata = initial_metadata
        self._trailing = trailing

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str | None:
        """Return the server's, or gRPC's, words about it."""
        return self._details

    def initial_metadata(self) -> Any:
        """Return the metadata that came first."""
        return self._initial_metadata

    def trailing_metadata(self) -> Any:
        """Return the metadata that came with the status."""
        return self._trailing

    def is_active(self) -> bool:
        """Return ``False``: the call has ended."""
        return False

    def time_remaining(self) -> float | None:
        """Return ``None``: the call has ended."""
        return None

    def cancel(self) -> bool:
        """Return ``False``: the call has ended."""
        return False

    def add_callback(self, callback: Callable[[], None]) -> bool:  # noqa: ARG002
        """Return ``False``: the call has ended, so nothing will be called."""
        return False
