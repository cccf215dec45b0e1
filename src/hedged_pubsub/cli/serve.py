"""``hedged-pubsub serve``: the test server in the foreground."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from hedged_pubsub.cli.arguments import ServeOptions
from hedged_pubsub.cli.report import CommandError, in_words
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, StoreThenStall


def run_serve(options: ServeOptions) -> None:
    """Serve until SIGINT or SIGTERM; raise CommandError if the port cannot be had."""
    stopped = threading.Event()
    # Before the server starts, so that a signal during the start ends it as cleanly.
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background job
        signal.signal(signal.SIGINT, lambda *_: stopped.set())

    stall = StoreThenStall(options.stall, probability=options.stall_rate)
    script = FaultScript(
        latency=Fixed(options.latency) if options.latency else None,
        faults=[stall] if options.stall_rate else [],
        seed=options.seed,
    )
    server = PubSubServer(script, port=options.port, auto_create_topics=True)
    try:
        # gRPC would write a long line of its own to stderr about a port that it cannot have.
        with socket.socket() as probe:
            if os.name == "posix":  # as a server does; elsewhere it would take over a port in use
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", options.port))
        server.start()
    except (OSError, RuntimeError) as error:
        raise CommandError(
            f"cannot listen on 127.0.0.1:{options.port}: {error} (--port 0 picks a free port)"
        ) from error
    try:
        for line in (
            f"export PUBSUB_EMULATOR_HOST={server.address}",
            f"set -gx PUBSUB_EMULATOR_HOST {server.address}  # fish",
            f'$env:PUBSUB_EMULATOR_HOST = "{server.address}"  # PowerShell',
        ):
            print(line, flush=True)
        # With a timeout, because only then Windows delivers Ctrl-C to a waiting thread.
        while not stopped.wait(1.0):
            pass
        attempts, messages = len(server.attempts()), len(server.messages())
    finally:
        server.stop()
    requests = in_words(attempts, "publish request", "publish requests")
    stored = in_words(messages, "message was", "messages were")
    print(f"Served {requests}; {stored} stored.", file=sys.stderr)
