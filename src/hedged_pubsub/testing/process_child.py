"""What the server's own process runs: a `LocalServer` and a loop over the parent's requests."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from typing import BinaryIO

from hedged_pubsub.testing.local_server import LocalServer

_PARENT_CHECK_SECONDS = 1.0


def main() -> None:
    """Serves the parent over standard input and output until it closes them, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whatever else writes to standard output must not end up between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, replies)
    # The parent waits for the end, and taking down the interpreter takes longer than the server.
    os._exit(0)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Starts a server as the first request says, then answers requests until their end.

    Args:
        requests: pickled tuples: first the parent's process id, settings and script; then the name
            of a method and its arguments.
        replies: gets a pickled pair of result and error for each.
    """
    parent, settings, script = pickle.load(requests)  # noqa: S301 - our own parent wrote it
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    try:
        server = LocalServer(settings, script)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        _reply(replies, None, error)
        return
    try:
        _reply(replies, server.port, None)
        while True:
            method, *args = pickle.load(requests)  # noqa: S301
            try:
                result = getattr(server, method)(*args)
            except Exception as error:  # noqa: BLE001 - the parent raises it
                _reply(replies, None, error)
            else:
                _reply(replies, result, None)
    except (EOFError, BrokenPipeError):
        pass  # the parent has closed the pipes, or is gone
    finally:
        server.stop()


def _reply(replies: BinaryIO, result: object, error: Exception | None) -> None:
    pickle.dump((result, error), replies, protocol=pickle.HIGHEST_PROTOCOL)
    replies.flush()


def _exit_with_parent(parent: int) -> None:
    # The pipe alone does not tell if the parent forked: its other children hold the pipe open.
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)
