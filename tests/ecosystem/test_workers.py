"""Workers of frameworks, and libraries that publish by themselves: what is accepted is stored."""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path

import pytest

from hedged_pubsub.testing import PubSubServer

from .conftest import clients, run, started


def stored(server: PubSubServer) -> int:
    """Return how many different messages are stored."""
    return len({one.data for one in server.messages()})


@clients
def test_kombus_transport(server: PubSubServer, client: str) -> None:
    """It makes a ``Retry`` for each message: 300 messages make few requests, and all arrive."""
    lines, _ = run(client, "kombu_transport")
    assert lines == ["True"]
    assert len(server.attempts()) < 30


@clients
def test_celerys_prefork_workers(server: PubSubServer, client: str, tmp_path: Path) -> None:
    """Tasks that do not wait lose nothing, neither at the end nor when a child is replaced."""
    with started(client, "celery_worker.py", FOLDER=str(tmp_path)) as process:
        assert process.stderr is not None
        tasks = 0
        while tasks < 8:
            line = process.stderr.readline()
            assert line, "the worker has ended"
            tasks += "succeeded" in line
        process.terminate()
        process.communicate(timeout=60)
    assert client == "official" or stored(server) == 40


class Unix(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = str(path)

    def connect(self) -> None:
        """Connect."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


@pytest.mark.parametrize("worker", [["sync"], ["gevent", "--preload"]], ids=" ".join)
def test_gunicorns_workers(server: PubSubServer, tmp_path: Path, worker: list[str]) -> None:
    """Requests that do not wait for what they publish lose nothing when gunicorn ends."""
    path = tmp_path / "socket"
    command = ("-m", "gunicorn", "-b", f"unix:{path}", "-k", *worker, "gunicorn_app")
    with started("hedged", *command) as process:
        give_up = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < give_up
            time.sleep(0.05)
        for _ in range(10):
            connection = Unix(path)
            connection.request("GET", "/")
            assert connection.getresponse().status == 204
            connection.close()
        process.terminate()
        process.communicate(timeout=60)
    assert len(server.messages()) == 10
