"""A Model Armor service on loopback, over gRPC and REST, that fails as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent import futures
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

import grpc
from google.cloud import modelarmor_v1
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

SERVICE: Final = "google.cloud.modelarmor.v1.ModelArmor"
TEMPLATE: Final = "projects/test/locations/here/templates/strict"

_FOUND: Final = modelarmor_v1.FilterMatchState.MATCH_FOUND
_ANSWER: Final = modelarmor_v1.SanitizeUserPromptResponse(
    sanitization_result=modelarmor_v1.SanitizationResult(filter_match_state=_FOUND)
)

# The service's own mapping; 502 comes from a proxy, and gRPC has no such code.
_GRPC_CODES: Final = {
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    502: grpc.StatusCode.UNKNOWN,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """What the service answers instead of a result.

    Attributes:
        status: The HTTP status; over gRPC the code that stands for it.
        wait: Seconds that the service asks to be left alone.
    """

    status: int
    wait: int | None = None


class ModelArmorServer:
    """The service: both protocols take from one list of failures, then succeed.

    Attributes:
        grpc_address: Host and port.
        rest_address: Host and port.
        calls: How often it was called.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: list[Failure] = []
        self.calls = 0
        self._grpc = grpc.server(futures.ThreadPoolExecutor(4))
        sanitize = grpc.unary_unary_rpc_method_handler(
            self._sanitize,
            request_deserializer=modelarmor_v1.SanitizeUserPromptRequest.deserialize,
            response_serializer=modelarmor_v1.SanitizeUserPromptResponse.serialize,
        )
        self._grpc.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"SanitizeUserPrompt": sanitize})]
        )
        self.grpc_address = f"127.0.0.1:{self._grpc.add_insecure_port('127.0.0.1:0')}"
        self._http = _HttpServer(("127.0.0.1", 0), _HttpHandler)
        self._http.service = self
        self.rest_address = f"127.0.0.1:{self._http.server_port}"

    def fail(self, failures: Sequence[Failure]) -> None:
        """Fail the next calls, then succeed."""
        with self._lock:
            self._failures = list(failures)
            self.calls = 0

    def next_failure(self) -> Failure | None:
        """Count a call, and say how it fails, if it does."""
        with self._lock:
            self.calls += 1
            return self._failures.pop(0) if self._failures else None

    def _sanitize(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert request.name == TEMPLATE
        failure = self.next_failure()
        if failure is not None:
            context.abort_with_status(rpc_status.to_status(_grpc_status(failure)))
        return _ANSWER

    def __enter__(self) -> ModelArmorServer:
        """Start both servers."""
        self._grpc.start()
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop both servers."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._grpc.stop(None).wait()


class _HttpServer(ThreadingHTTPServer):
    service: ModelArmorServer
    daemon_threads = True


class _HttpHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert self.path.partition("?")[0] == f"/v1/{TEMPLATE}:sanitizeUserPrompt"
        assert isinstance(self.server, _HttpServer)
        self.rfile.read(int(self.headers["Content-Length"]))
        failure = self.server.service.next_failure()
        if failure is None:
            status, body = 200, modelarmor_v1.SanitizeUserPromptResponse.to_json(_ANSWER)
        else:
            status = failure.status
            body = json.dumps({"error": {"code": status, "message": "told to fail"}})
        self.send_response(status)
        if failure is not None and failure.wait is not None:
            self.send_header("Retry-After", str(failure.wait))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


def _grpc_status(failure: Failure) -> Status:
    code: tuple[int, str] = _GRPC_CODES[failure.status].value
    status = Status(code=code[0], message="told to fail")
    if failure.wait is not None:
        detail = AnyMessage()
        detail.Pack(RetryInfo(retry_delay=Duration(seconds=failure.wait)))
        status.details.append(detail)
    return status
