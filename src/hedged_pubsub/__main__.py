"""The ``hedged-pubsub`` command's entry point; ``python -m hedged_pubsub`` is the same."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from hedged_pubsub.cli.arguments import FROZEN_CONNECTION, DemoOptions, parse
from hedged_pubsub.cli.bench.arguments import BenchOptions
from hedged_pubsub.cli.plan.arguments import PlanOptions
from hedged_pubsub.cli.values import UsageError

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 128 + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments without the program's name; None takes ``sys.argv``.

    Returns:
        The exit code: 0 done, 1 failed, 2 wrong arguments or a missing extra, 130 interrupted.

    Raises:
        SystemExit: After ``--help`` or ``--version``, with code 0.
    """
    try:
        options = parse(argv)
        # Each command is imported only when it runs: what one needs may not be installed.
        if isinstance(options, (BenchOptions, DemoOptions)):
            return _measure(options)
        if isinstance(options, PlanOptions):
            from hedged_pubsub.cli.plan.run import run_plan

            return run_plan(options)
        from hedged_pubsub.cli.serve import run_serve

        return run_serve(options)
    except UsageError as error:
        print(error, file=sys.stderr)
        return _EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _measure(options: BenchOptions | DemoOptions) -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_once)
    from hedged_pubsub.cli.open_loop import MeasurementError

    name = "bench" if isinstance(options, BenchOptions) else "demo"
    try:
        if isinstance(options, BenchOptions):
            from hedged_pubsub.cli.bench.run import run_bench

            return run_bench(options)
        if options.fault == FROZEN_CONNECTION:
            from hedged_pubsub.cli.frozen import run_frozen

            return run_frozen(options)
        from hedged_pubsub.cli.demo import run_demo

        return run_demo(options)
    except MeasurementError as error:
        print(f"hedged-pubsub {name}: error: {error}", file=sys.stderr)
        return _EXIT_FAILED


def _interrupt_once(_signal: int, _frame: FrameType | None) -> None:
    # The first Ctrl-C cleans up; a second one ends the process at once and without a traceback
    # from the middle of that (the server's process ends with its parent).
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
