"""Unary RPCs on gRPC's core, without the future that grpcio wraps around each.

``multicallable.future()`` makes a condition, three closures, a state and a rendezvous for every
call, about 40 µs of CPU time. This publisher needs only the answer, so it passes the same six
operations to the same function and takes the event itself, which gRPC's own thread delivers;
channels, forks and ``close()`` know no difference. That function is private to grpcio: where it
does not have exactly the parameters that are known here, ``future()`` is called instead.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable
from typing import Any, Final, cast

import grpc
import grpc._channel
from grpc._cython import cygrpc

from hedged_pubsub._google.rpc_errors import UNREADABLE

_KNOWN_PARAMETERS: Final = (
    *("flags", "method", "host", "deadline", "metadata", "credentials", "operations"),
    *("event_handler", "context"),
)
_HANDLE: Final = "_registered_call_handle"  # one more, not in older releases
_USED: Final = {
    cygrpc: (
        *("SendInitialMetadataOperation", "SendMessageOperation", "SendCloseFromClientOperation"),
        *("ReceiveInitialMetadataOperation", "ReceiveMessageOperation"),
        *("ReceiveStatusOnClientOperation", "get_fork_epoch"),
    ),
    grpc._channel: ("_RPCState", "_InactiveRpcError"),
}
_NO_FLAGS: Final = 0
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_CANCELLED: Final = grpc.StatusCode.CANCELLED.value[0]

Start = Callable[..., Any]
"""Takes what ``multicallable.future`` takes and returns a call that may have ended already."""


def direct_start(
    multicallable: Any, on_error: Callable[[Exception], object] = traceback.print_exception
) -> Start:
    """Return the cheapest way to start calls of a method without interceptors or serializer.

    On gRPC's thread, ``on_error`` takes what the callback of a call has raised.
    """
    if not _is_known(multicallable):
        return cast("Start", multicallable.future)
    managed_call, method = multicallable._managed_call, multicallable._method
    deserialize = multicallable._response_deserializer
    tail: tuple[Any, ...] = (multicallable._context,)
    if _HANDLE in inspect.signature(managed_call).parameters:
        tail += (getattr(multicallable, _HANDLE, None),)
    flags = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS
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
            arguments = {"metadata": metadata, "compression": compression}
            return multicallable.future(request, timeout, **arguments)
        call = DirectCall(deserialize, fork_epoch(), on_error)
        sent = (
            cygrpc.SendInitialMetadataOperation(metadata, _NO_FLAGS),
            cygrpc.SendMessageOperation(request, _NO_FLAGS),
        )
        operations = (*sent, close, call.initial_metadata, call.message, call.status)
        deadline = None if timeout is None else time.time() + timeout
        call.core = managed_call(
            flags, method, None, deadline, metadata, None, (operations,), call, *tail
        )
        return call

    return start


def _is_known(multicallable: Any) -> bool:
    managed_call = getattr(multicallable, "_managed_call", None)
    if type(multicallable) is not grpc._channel._UnaryUnaryMultiCallable or managed_call is None:
        return False
    if any(not hasattr(module, name) for module, names in _USED.items() for name in names):
        return False
    # Observability plugins are told of every call of a future.
    observability = getattr(grpc, "_observability", None)
    if observability is not None and observability._OBSERVABILITY_PLUGIN is not None:
        return False
    names = " ".join(inspect.signature(managed_call).parameters).replace(
        "operationses", "operations"
    )
    return tuple(names.split()) in {_KNOWN_PARAMETERS, (*_KNOWN_PARAMETERS, _HANDLE)}


class DirectCall:
    """One RPC: as much of ``grpc.Future`` as the driver needs; gRPC calls it when all has ended."""

    __slots__ = (
        "_attempt",
        "_batch",
        "_callback",
        "_deserialize",
        "_ended",
        "_fork_epoch",
        "_on_error",
        "core",
        "initial_metadata",
        "message",
        "status",
    )

    def __init__(
        self,
        deserialize: Callable[[bytes], Any],
        fork_epoch: int,
        on_error: Callable[[Exception], object],
    ) -> None:
        self._deserialize = deserialize
        self._fork_epoch = fork_epoch
        self._on_error = on_error
        # Whoever comes second, the end or the callback, sees the other one; CPython does not
        # switch threads between the test and the assignment.
        self._ended = False
        self._callback: Callable[..., object] | None = None
        self._batch: Any = None
        self._attempt = 0
        self.core: Any = None  # the call in gRPC's core, which fills the operations
        self.initial_metadata = cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS)
        self.message = cygrpc.ReceiveMessageOperation(_NO_FLAGS)
        self.status = cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS)

    def when_ended(
        self, callback: Callable[[Any, int, Any], object], batch: Any, attempt: int
    ) -> None:
        """Call ``callback(batch, attempt, self)``, one at most, once the call has ended."""
        # The arguments are kept here to spare a ``partial`` for each call.
        self._batch, self._attempt = batch, attempt
        if self._ended:
            callback(batch, attempt, self)
        else:
            self._callback = callback

    def __call__(self, _event: object) -> bool:
        """Take in the end of all operations, on gRPC's thread; say if it is this process's."""
        if self._callback is None:
            self._ended = True
        else:
            callback, batch, self._batch = self._callback, self._batch, None
            try:
                callback(batch, self._attempt, self)
            except Exception as error:  # noqa: BLE001 - gRPC's thread goes on
                self._on_error(error)
        return self._fork_epoch >= cygrpc.get_fork_epoch()  # type: ignore[no-any-return]

    def cancel(self) -> None:
        """Cancel the call if it has not ended."""
        self.core.cancel(_CANCELLED, "Locally cancelled by application!")

    def result(self) -> Any:
        """Return the answer of a call that has ended, or raise its error, a ``grpc.RpcError``."""
        code = self.status.code()
        if code != 0:
            status = _CODES.get(code, grpc.StatusCode.UNKNOWN)
            raise self._error(status, self.status.details(), self.status.error_string())
        try:
            return self._deserialize(self.message.message())
        except Exception as error:
            raise self._error(grpc.StatusCode.INTERNAL, UNREADABLE) from error

    def _error(
        self, code: grpc.StatusCode, details: str | None, core_text: str | None = None
    ) -> Exception:
        first, last = self.initial_metadata.initial_metadata(), self.status.trailing_metadata()
        state = grpc._channel._RPCState((), first, last, code, details)
        state.debug_error_string = core_text
        return cast("Exception", grpc._channel._InactiveRpcError(state))
