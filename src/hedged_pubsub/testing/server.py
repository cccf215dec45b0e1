"""`PubSubServer`: the server as users see it, wherever it runs."""

from __future__ import annotations

import os
import threading
from operator import attrgetter
from typing import Any, Final

from hedged_pubsub.testing import checks
from hedged_pubsub.testing.child import Child
from hedged_pubsub.testing.faults import FaultScript
from hedged_pubsub.testing.local_server import LocalServer
from hedged_pubsub.testing.records import Attempt, StoredMessage

_EMULATOR_HOST: Final = "PUBSUB_EMULATOR_HOST"

# The server's methods that tell what it has recorded.
_ATTEMPTS: Final = "publish.attempts"
_MESSAGES: Final = "broker.messages"

# Starting a process takes about a second; a machine that needs more than this is not usable for
# tests.
_START_SECONDS: Final = 30.0


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
        if not isinstance(script, FaultScript):
            raise TypeError(f"script={script!r} must be a FaultScript")
        if "/" in checks.text("project", project, "test"):
            raise ValueError(f'project={project!r} must be an id without slashes, such as "test"')
        checks.integer("port", port, 0, 65_535)
        self._has_relay = relay or script.resets_connections
        self._set_up = (script, port, auto_create_topics, self._has_relay)
        self._process = process
        self._set_emulator_host = set_emulator_host
        self._project = project
        self._lock = threading.Lock()  # guards all below
        self._server: LocalServer | Child | None = None
        self._port = 0
        self._running = False
        self._records: dict[str, tuple[Any, ...]] | None = None  # what `stop` has kept
        self._old_environment: dict[str, str] = {}

    def __repr__(self) -> str:
        """Say where the server is."""
        where = f"at {self.address}" if self._running else "stopped"
        return f"<{type(self).__name__} {where}>"

    def __enter__(self) -> PubSubServer:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop the server."""
        self.stop()

    def start(self) -> None:
        """Start the server, without records, messages or topics; return when it answers.

        Raises:
            RuntimeError: if it runs already, the port is not free, or its process does not start.
        """
        with self._lock:
            if self._running:
                raise RuntimeError(f"the server runs already at {self.address}; stop it first")
            if self._process:
                child = Child(LocalServer, *self._set_up, timeout=_START_SECONDS, quiet=True)
                try:
                    self._port = child.call(attrgetter("port"))
                except BaseException:
                    child.end()
                    raise
                child.timeout = None
                self._server = child
            else:
                self._server = LocalServer(*self._set_up)
                self._port = self._server.port
            self._records = None
            self._running = True
            if self._set_emulator_host:
                old = os.environ.get(_EMULATOR_HOST)
                self._old_environment = {} if old is None else {_EMULATOR_HOST: old}
                os.environ[_EMULATOR_HOST] = self.address

    def stop(self) -> None:
        """Stop the server and free its port; what it recorded stays readable.

        Calls that are open end as cancelled. Does nothing if the server does not run. A process
        that has died is no error here, but its records are lost.
        """
        with self._lock:
            if not self._running:
                return
            self._running = False
            if self._set_emulator_host:
                os.environ.pop(_EMULATOR_HOST, None)
                os.environ.update(self._old_environment)
            try:
                self._call("stop")
                self._records = {read: self._call(read, None) for read in (_ATTEMPTS, _MESSAGES)}
            except RuntimeError:
                pass  # the process has died; reading the records says so
            finally:
                if isinstance(self._server, Child):
                    self._server.end()

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            RuntimeError: if the server was never started.
        """
        self._started()
        return self._port

    @property
    def address(self) -> str:
        """Host and port, such as ``"127.0.0.1:40123"``: a value for ``PUBSUB_EMULATOR_HOST``.

        Raises:
            RuntimeError: if the server was never started.
        """
        return f"127.0.0.1:{self.port}"

    def topic_path(self, topic: str) -> str:
        """Return the full path of a topic, such as ``"projects/test/topics/orders"``.

        Args:
            topic: its short name, or its path already.
        """
        return self._path("topics", topic)

    def subscription_path(self, subscription: str) -> str:
        """Return the full path of a subscription.

        Args:
            subscription: its short name, or its path already.
        """
        return self._path("subscriptions", subscription)

    def create_topic(self, topic: str) -> str:
        """Add a topic and return its full path.

        Args:
            topic: its short name or path.

        Raises:
            StatusError: ALREADY_EXISTS, or INVALID_ARGUMENT for a malformed path.
        """
        path = self.topic_path(topic)
        self._change("create_topic", path)
        return path

    def create_subscription(self, subscription: str, topic: str) -> str:
        """Add a subscription and return its full path.

        Args:
            subscription: its short name or path.
            topic: short name or path of its topic, which must exist.

        Raises:
            StatusError: ALREADY_EXISTS, NOT_FOUND for the topic, or INVALID_ARGUMENT for a
                malformed path.
        """
        path = self.subscription_path(subscription)
        self._change("create_subscription", path, self.topic_path(topic))
        return path

    def set_script(self, script: FaultScript) -> None:
        """Replace the script. Calls that are held already stay so; calls are numbered from 1 again.

        Raises:
            ValueError: if it has a `ResetConnection` and the server was started without a relay.
        """
        if not isinstance(script, FaultScript):
            raise TypeError(f"script={script!r} must be a FaultScript")
        if script.resets_connections and not self._has_relay:
            raise ValueError(
                "faults has a ResetConnection, which needs a relay in front of the server; "
                "start the server with relay=True"
            )
        self._change("publish.set_script", script)

    def attempts(self, topic: str | None = None) -> tuple[Attempt, ...]:
        """Return every Publish attempt since the start or the last `clear`, in order of arrival.

        Args:
            topic: short name or path of a topic, or None for all.
        """
        return self._recorded(_ATTEMPTS, topic)

    def messages(self, topic: str | None = None) -> tuple[StoredMessage, ...]:
        """Return every message stored since the start or the last `clear`, in order of storing.

        What was published twice is there twice.

        Args:
            topic: short name or path of a topic, or None for all.
        """
        return self._recorded(_MESSAGES, topic)

    def duplicates(
        self, id_attribute: str, topic: str | None = None
    ) -> tuple[tuple[StoredMessage, ...], ...]:
        """Return the messages that are stored more than once, by an id of their own.

        Args:
            id_attribute: the attribute with the id. Messages without it are left out.
            topic: short name or path of a topic, or None for all.

        Returns:
            For each id that was stored twice or more in one topic, all its copies in order of
            storing; those stored first come first.
        """
        copies: dict[tuple[str, str], list[StoredMessage]] = {}
        for message in self.messages(topic):
            value = dict(message.attributes).get(id_attribute)
            if value is not None:
                copies.setdefault((message.topic, value), []).append(message)
        return tuple(tuple(group) for group in copies.values() if len(group) > 1)

    def clear(self) -> None:
        """Forget attempts and messages; topics, subscriptions and call numbers stay."""
        with self._lock:
            if self._records is None:
                self._call("publish.clear")
                self._call("broker.clear")
            else:
                self._records = dict.fromkeys(self._records, ())

    def _path(self, collection: str, name: str) -> str:
        return name if "/" in name else f"projects/{self._project}/{collection}/{name}"

    def _recorded(self, read: str, topic: str | None) -> tuple[Any, ...]:
        path = None if topic is None else self.topic_path(topic)
        with self._lock:
            if self._records is None:
                return tuple(self._call(read, path))
            return tuple(r for r in self._records[read] if path in (None, r.topic))

    def _change(self, method: str, *args: object) -> None:
        with self._lock:
            if self._server is not None and not self._running:
                raise RuntimeError("the server is stopped; start it again first")
            self._call(method, *args)

    def _call(self, method: str, *args: object) -> Any:
        """Call a method of the server, or of a part of it, in whichever process it is."""
        server = self._started()
        if isinstance(server, Child):
            return server.call(_call_method, method, *args)
        return _call_method(server, method, *args)

    def _started(self) -> LocalServer | Child:
        if self._server is None:
            raise RuntimeError("the server was not started; use it in a with statement, or start()")
        return self._server


def _call_method(server: LocalServer, method: str, *args: object) -> Any:
    return attrgetter(method)(server)(*args)
