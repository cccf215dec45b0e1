"""``hedged-pubsub demo``: one schedule, one set of faults, two clients."""

from __future__ import annotations

import concurrent.futures
import gc
import math
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from google.cloud import pubsub_v1

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub._options import DISABLE_VARIABLE
from hedged_pubsub.cli.arguments import DemoOptions
from hedged_pubsub.cli.drawing import drawn
from hedged_pubsub.cli.extras import check_extras
from hedged_pubsub.cli.open_loop import MeasurementError, OpenLoopRun, run_open_loop, warm_up
from hedged_pubsub.cli.report import Report, client_result, hedged_result, late_note
from hedged_pubsub.cli.values import UsageError
from hedged_pubsub.testing import FaultScript, LogNormal, PubSubServer, StoreThenStall

if TYPE_CHECKING:
    from rich.progress import Progress

# What publishing within a region looks like from the outside: a few milliseconds, some spread.
LATENCY: Final = LogNormal(median=0.005, sigma=0.4)
# A request for each message, so that publishes and requests can be compared one to one.
ONE_MESSAGE: Final = pubsub_v1.types.BatchSettings(max_messages=1)
# Successes that fill the default bucket, and an upper bound of a second or two for others.
_MIN_WARM_UP: Final = 200
_MAX_WARM_UP: Final = 1_000
# Beyond the longest stall: what a busy machine may need before the demo gives up.
PATIENCE: Final = 30.0
_CLOSE_TIMEOUT: Final = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    """One client's run, and what the server saw of it."""

    run: OpenLoopRun
    requests: int
    duplicates: int


def run_demo(options: DemoOptions) -> int:
    """Measure both clients and show the result; returns the exit code.

    Raises:
        UsageError: If an extra that the options need is not installed, or the environment
            switches hedging off.
        MeasurementError: If a publish fails, never ends or is not stored.
    """
    check_extras("demo", plots=options.plot is not None)
    # The demo talks to loopback only; gRPC would ask the proxy that http_proxy names even for that.
    os.environ["no_grpc_proxy"] = "127.0.0.1"  # noqa: SIM112 - gRPC reads it in lower case
    from hedged_pubsub.cli import table

    with table.progress_bars() as progress:
        plain, hedged, report = _compare(options, progress)

    if options.json:
        print(report.to_json(), flush=True)
    else:
        table.print_report(report)
    if note := late_note(plain.lateness + hedged.lateness):
        print(note, file=sys.stderr)
    return _plot(options, plain, hedged)


def warm_up_publishes(*, max_tokens: int, refill_ratio: float) -> int:
    """How many successes each client gets uncounted: enough to fill the bucket, within bounds."""
    return max(_MIN_WARM_UP, min(math.ceil(max_tokens / refill_ratio), _MAX_WARM_UP))


def _compare(options: DemoOptions, progress: Progress) -> tuple[OpenLoopRun, OpenLoopRun, Report]:
    plain_bar = progress.add_task("PublisherClient", total=options.publishes)
    hedged_bar = progress.add_task("HedgedPublisher", total=options.publishes)
    with (
        PubSubServer(process=True, set_emulator_host=True) as server,
        hedged_publisher(options.hedging) as hedged_client,
    ):
        # One after the other, so that they do not compete for this machine's few cores.
        plain_client = pubsub_v1.PublisherClient(ONE_MESSAGE)
        side = _Side(plain_client, server, server.create_topic("demo-plain"), options)
        side.warm_up()
        plain = side.measure(lambda ended: progress.update(plain_bar, completed=ended))
        # Not in a finally: after Ctrl-C the process ends at once, and closing the channel under
        # requests in flight would make the official client's threads fail aloud.
        plain_client.stop()
        plain_client.transport.close()

        side = _Side(hedged_client, server, server.create_topic("demo-hedged"), options)
        side.warm_up()
        before = hedged_client.hedging_stats()
        hedged = side.measure(lambda ended: progress.update(hedged_bar, completed=ended))
        after = hedged_client.hedging_stats()

    report = Report(
        plain=client_result(plain.run.latencies, requests=plain.requests),
        hedged=hedged_result(
            hedged.run.latencies,
            requests=hedged.requests,
            plain_requests=plain.requests,
            hedges_sent=after.hedges_sent - before.hedges_sent,
            hedges_won=after.hedges_won - before.hedges_won,
            hedges_suppressed=after.hedges_suppressed - before.hedges_suppressed,
            duplicates=hedged.duplicates,
        ),
    )
    return plain.run, hedged.run, report


@contextmanager
def hedged_publisher(settings: HedgingSettings) -> Iterator[HedgedPublisher]:
    """Make the hedged client, and close it without waiting for long.

    Raises:
        UsageError: If the environment switches hedging off.
    """
    publisher = HedgedPublisher(ONE_MESSAGE, hedging_settings=settings)
    try:
        if publisher.hedging_settings is None:
            raise UsageError(
                f"hedged-pubsub demo: error: {DISABLE_VARIABLE} is set, which switches hedging off;"
                " unset it to see a difference"
            )
        yield publisher
    finally:
        # Only after Ctrl-C or a failure is anything undecided, and nobody waits for it any more.
        with suppress(concurrent.futures.TimeoutError):
            publisher.close(timeout=_CLOSE_TIMEOUT)


@dataclass(frozen=True, slots=True)
class _Side:
    """One client of the comparison, with the topic that only it publishes to."""

    client: pubsub_v1.PublisherClient
    server: PubSubServer
    topic: str
    options: DemoOptions

    def warm_up(self) -> None:
        """Open the connection, fill the token bucket, and leave no trace of it on the server."""
        hedging = self.options.hedging
        self.server.set_script(FaultScript(latency=LATENCY, seed=self.options.seed))
        count = warm_up_publishes(max_tokens=hedging.max_tokens, refill_ratio=hedging.refill_ratio)
        warm_up(self._publish, count, timeout=PATIENCE)
        self.server.clear()

    def measure(self, on_progress: Callable[[int], None]) -> _Measured:
        """Run the schedule against the heavy tail.

        Both clients get a script that starts at the same seed. Hedges are requests too and take
        draws of their own, so from the first hedge on a draw no longer meets the same message;
        but the hedged client gets every draw that the plain one got, and then some.
        """
        options = self.options
        self.server.set_script(
            FaultScript(
                latency=LATENCY,
                faults=[StoreThenStall(options.stall, probability=options.stall_rate)],
                seed=options.seed,
            )
        )
        # A full collection walks everything that was ever imported and takes some 40 ms, which
        # would be in either client's tail. Frozen objects are not walked.
        gc.collect()
        gc.freeze()
        run = run_open_loop(
            self._publish,
            publishes=options.publishes,
            rate=options.rate,
            timeout=options.stall + PATIENCE,
            on_progress=on_progress,
        )
        stored = self.server.messages(self.topic)
        unique = len({message.data for message in stored})
        if unique != options.publishes:
            raise MeasurementError(
                f"{options.publishes} publishes succeeded, but {unique} messages are stored"
            )
        return _Measured(
            run=run,
            requests=len(self.server.attempts(self.topic)),
            duplicates=len(stored) - unique,
        )

    def _publish(self, number: int) -> Future[str]:
        future: Future[str] = self.client.publish(self.topic, b"message %d" % number)
        return future


def _plot(options: DemoOptions, plain: OpenLoopRun, hedged: OpenLoopRun) -> int:
    if options.plot is None:
        return 0
    from hedged_pubsub.cli import plot

    title = (
        f"{options.publishes:,} publishes each, {options.rate:g} per second;"
        f" {100 * options.stall_rate:g} % of requests stall for {options.stall:g} s"
    )
    draw = partial(
        plot.draw,
        options.plot,
        plain=plain.latencies,
        hedged=hedged.latencies,
        hedge_delay=options.hedging.initial_hedge_delay,
        title=title,
    )
    return drawn("demo", "Latency curves", options.plot, draw)
