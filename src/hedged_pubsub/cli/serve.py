"""``hedged-pubsub serve``: the test server in the foreground."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from types import FrameType

from hedged_pubsub.cli.arguments import ServeOptions
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, StoreThenStall


def run_serve(options: ServeOptions) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    stopped = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()

    # Before the server starts, so that a signal during the start ends it as cleanly.
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job
        signal.signal(signal.SIGINT, stop)

    server = PubSubServer(_script(options), port=options.port, auto_create_topics=True)
    try:
        _check_port(options.port)
        server.start()
    except (OSError, RuntimeError) as error:
        print(
            f"hedged-pubsub serve: error: cannot listen on 127.0.0.1:{options.port}: {error}"
            " (--port 0 picks a free port)",
            file=sys.stderr,
        )
        return 1
    try:
        print(f"export PUBSUB_EMULATOR_HOST={server.address}", flush=True)
        # With a timeout, because only then Windows delivers Ctrl-C to a waiting thread.
        while not stopped.wait(1.0):
            pass
        attempts, messages = len(server.attempts()), len(server.messages())
    finally:
        server.stop()
    requests = "publish request" if attempts == 1 else "publish requests"
    stored = "message was" if messages == 1 else "messages were"
    print(f"Served {attempts:,} {requests}; {messages:,} {stored} stored.", file=sys.stderr)
    return 0


def _check_port(port: int) -> None:
    # gRPC would write a long line of its own to stderr about a port that it cannot have.
    with socket.socket() as probe:
        if os.name == "posix":  # as a server does; elsewhere it would take over a port in use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def _script(options: ServeOptions) -> FaultScript:
    return FaultScript(
        latency=Fixed(options.latency) if options.latency else None,
        faults=[StoreThenStall(options.stall, probability=options.stall_rate)]
        if options.stall_rate
        else [],
        seed=options.seed,
    )
