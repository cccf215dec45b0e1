"""`PubSubServer`: the server as users see it, wherever it runs."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Protocol

from hedged_pubsub.testing import checks
from hedged_pubsub.testing.faults import FaultScript
from hedged_pubsub.testing.local_server import LocalServer
from hedged_pubsub.testing.process_server import ProcessServer
from hedged_pubsub.testing.records import Attempt, StoredMessage
from hedged_pubsub.testing.settings import ServerSettings

_EMULATOR_HOST = "PUBSUB_EMULATOR_HOST"


class _RunningServer(Protocol):
    """What `LocalServer` and `ProcessServer` have in common."""

    port: int

    def create_topic(self, path: str) -> None: ...
    def create_subscription(self, path: str, topic: str) -> None: ...
    def set_script(self, script: FaultScript) -> None: ...
    def attempts(self, topic: str | None) -> tuple[Attempt, ...]: ...
    def messages(self, topic: str | None) -> tuple[StoredMessage, ...]: ...
    def clear(self) -> None: ...
    def stop(self) -> None: ...


class PubSubServer:
    """A real gRPC Pub/Sub server on loopback with faults on demand.

    Use it as a context manager, or call `start` and `stop`. It can be started again after a stop,
    and then begins empty. All methods are thread-safe.

    Args:
        script: what happens to the Publish calls; None for answers at once.
        process: whether it runs in a process of its own, which leaves this one's interpreter lock
            to the program under test. The process ends with this one, however that ends.
        set_emulator_host: whether to set the environment variable ``PUBSUB_EMULATOR_HOST``, so
            that Pub/Sub clients made meanwhile use this server. `stop` restores the old value.
        auto_create_topics: whether publishing to an unknown topic creates it, instead of
            failing with NOT_FOUND.
        project: the project of names that are not full paths.
        port: the port to listen on; 0 for one that is free.
        relay: whether connections pass through a relay that can reset them; it costs some
            throughput. On by itself if the script has a `ResetConnection`; set it if only a later
            script has.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a port that is not between 0 and 65535, or a project that is no id.
    """

    def __init__(
        self,
        script: FaultScript | None = None,
        *,
        process: bool = False,
        set_emulator_host: bool = False,
        auto_create_topics: bool = False,
        project: str = "test",
        port: int = 0,
        relay: bool = False,
    ) -> None:
        if script is None:
            script = FaultScript()
        _check_script(script)
        if "/" in checks.text("project", project, "test"):
            raise ValueError(f'project={project!r} must be an id without slashes, such as "test"')
        self._script = script
        self._settings = ServerSettings(
            port=port,
            auto_create_topics=auto_create_topics,
            relay=relay or script.resets_connections,
        )
        self._process = process
        self._set_emulator_host = set_emulator_host
        self._project = project
        self._lock = threading.Lock()
        self._server: _RunningServer | None = None
        self._running = False
        self._old_emulator_host: str | None = None

    def __repr__(self) -> str:
        """Says where the server is."""
        where = f"at {self.address}" if self._running else "stopped"
        return f"<{type(self).__name__} {where}>"

    def __enter__(self) -> PubSubServer:
        """Starts the server."""
        self.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops the server."""
        self.stop()

    def start(self) -> None:
        """Starts the server, without records, messages or topics; returns when it answers.

        Raises:
            RuntimeError: if it runs already, the port is not free, or its process does not start.
        """
        with self._lock:
            if self._running:
                raise RuntimeError(f"the server runs already at {self.address}; stop it first")
            run = ProcessServer if self._process else LocalServer
            self._server = run(self._settings, self._script)
            self._running = True
            if self._set_emulator_host:
                self._old_emulator_host = os.environ.get(_EMULATOR_HOST)
                os.environ[_EMULATOR_HOST] = self.address

    def stop(self) -> None:
        """Stops the server and frees its port; what it recorded stays readable.

        Calls that are open end as cancelled. Does nothing if the server does not run.
        """
        with self._lock:
            if not self._running or self._server is None:
                return
            self._running = False
            if self._set_emulator_host:
                if self._old_emulator_host is None:
                    os.environ.pop(_EMULATOR_HOST, None)
                else:
                    os.environ[_EMULATOR_HOST] = self._old_emulator_host
            self._server.stop()

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: if the server was never started.
        """
        return self._started().port

    @property
    def address(self) -> str:
        """Host and port, such as ``"127.0.0.1:40123"``: a value for ``PUBSUB_EMULATOR_HOST``.

        Raises:
            RuntimeError: if the server was never started.
        """
        return f"127.0.0.1:{self.port}"

    def topic_path(self, topic: str) -> str:
        """Returns the full path of a topic, such as ``"projects/test/topics/orders"``.

        Args:
            topic: its short name, or its path already.
        """
        return self._path("topics", topic)

    def subscription_path(self, subscription: str) -> str:
        """Returns the full path of a subscription.

        Args:
            subscription: its short name, or its path already.
        """
        return self._path("subscriptions", subscription)

    def create_topic(self, topic: str) -> str:
        """Adds a topic and returns its full path.

        Args:
            topic: its short name or path.

        Raises:
            StatusError: ALREADY_EXISTS, or INVALID_ARGUMENT for a malformed path.
        """
        path = self.topic_path(topic)
        self._up().create_topic(path)
        return path

    def create_subscription(self, subscription: str, topic: str) -> str:
        """Adds a subscription and returns its full path.

        Args:
            subscription: its short name or path.
            topic: short name or path of its topic, which must exist.

        Raises:
            StatusError: ALREADY_EXISTS, NOT_FOUND for the topic, or INVALID_ARGUMENT for a
                malformed path.
        """
        path = self.subscription_path(subscription)
        self._up().create_subscription(path, self.topic_path(topic))
        return path

    def set_script(self, script: FaultScript) -> None:
        """Replaces the script. Calls that are held already stay so; call numbers start anew.

        Raises:
            ValueError: if it has a `ResetConnection` and the server was started without a relay.
        """
        _check_script(script)
        self._up().set_script(script)

    def attempts(self, topic: str | None = None) -> tuple[Attempt, ...]:
        """Returns every Publish attempt since the start or the last `clear`, in order of arrival.

        Args:
            topic: short name or path of a topic, or None for all.
        """
        return self._started().attempts(None if topic is None else self.topic_path(topic))

    def messages(self, topic: str | None = None) -> tuple[StoredMessage, ...]:
        """Returns every message stored since the start or the last `clear`, in order of storing.

        What was published twice is there twice.

        Args:
            topic: short name or path of a topic, or None for all.
        """
        return self._started().messages(None if topic is None else self.topic_path(topic))

    def clear(self) -> None:
        """Forgets attempts and messages; topics, subscriptions and call numbers stay."""
        self._started().clear()

    def _path(self, collection: str, name: str) -> str:
        return name if "/" in name else f"projects/{self._project}/{collection}/{name}"

    def _up(self) -> _RunningServer:
        server = self._started()
        if not self._running:
            raise RuntimeError("the server is stopped; start it again first")
        return server

    def _started(self) -> _RunningServer:
        if self._server is None:
            raise RuntimeError("the server was not started; use it in a with statement, or start()")
        return self._server


def _check_script(script: object) -> None:
    if not isinstance(script, FaultScript):
        raise TypeError(f"script={script!r} must be a FaultScript")
