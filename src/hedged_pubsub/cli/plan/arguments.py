"""What ``hedged-pubsub plan`` accepts on the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hedged_pubsub.cli.plan.columns import SECONDS
from hedged_pubsub.cli.plan.recommendation import REFILL_RATIOS
from hedged_pubsub.cli.plan.samples import Reading
from hedged_pubsub.cli.values import (
    PLOT_SUFFIXES,
    UsageError,
    listed,
    number_between,
    plot_path,
    positive_number,
    whole_number,
)
from hedged_pubsub.hedge_delay import MAX_HEDGE_DELAY, MIN_HEDGE_DELAY, HedgeDelay
from hedged_pubsub.settings import (
    MAX_REFILL_RATIO,
    MAX_TOKENS,
    MIN_REFILL_RATIO,
    MIN_TOKENS,
    HedgingSettings,
)

MAX_RATE: Final = 100_000.0

_DESCRIPTION: Final = """\
Choose the hedge delay and the refill ratio from recorded latencies.

Replays what was recorded through the publisher's own engine and token bucket,
on a virtual clock, once for each setting, and says what the latencies and the
extra requests would have been. Hedges take a random draw from the recorded
latencies.
"""

_INPUT_HELP: Final = """\
A CSV file or JSON lines with the latency of each publish request; a Cloud
Monitoring distribution of topic/send_request_latencies in JSON; or the output
of 'hedged-pubsub bench --json'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """What ``hedged-pubsub plan`` was asked to do.

    Attributes:
        source: The file, or ``None`` for the standard input.
        reading: How to read it.
        rate: Publish requests per second.
        hedge_delays: In seconds; ``None`` for some that suit the latencies.
        measured: A measured delay to try as well, or ``None``.
        refill_ratios: To try with each delay.
        max_tokens: The size of the token bucket.
        budget: The share of extra requests that is allowed.
        json: Whether to print one JSON object instead of the table.
        plot: The file to draw into, or ``None``.
    """

    source: Path | None
    reading: Reading
    rate: float
    hedge_delays: tuple[float, ...] | None
    measured: HedgeDelay | None
    refill_ratios: tuple[float, ...]
    max_tokens: int
    budget: float
    json: bool
    plot: Path | None


def plan_options(arguments: argparse.Namespace) -> PlanOptions:
    """Make the options of parsed arguments.

    Raises:
        UsageError: If the percentile is out of range.
    """
    fraction: float | None = arguments.percentile_delay
    try:
        measured = None if fraction is None else HedgeDelay.percentile(fraction)
    except ValueError as error:
        raise UsageError(f"hedged-pubsub plan: error: --percentile-delay: {error}") from error
    return PlanOptions(
        source=None if arguments.source == "-" else Path(arguments.source),
        reading=Reading(
            column=arguments.column,
            unit=arguments.unit,
            skip_malformed=arguments.malformed == "skip",
            seed=arguments.seed,
        ),
        rate=arguments.rate,
        hedge_delays=arguments.hedge_delays,
        measured=measured,
        refill_ratios=arguments.refill_ratios,
        max_tokens=arguments.max_tokens,
        budget=arguments.budget,
        json=arguments.json,
        plot=arguments.plot,
    )


def add_plan(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command to the command line."""
    plan = commands.add_parser(
        "plan",
        help="choose the hedge delay from recorded latencies",
        description=_DESCRIPTION,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=30
        ),
        allow_abbrev=False,
    )
    source = plan.add_argument_group("input", _INPUT_HELP)
    source.add_argument("source", metavar="FILE", help="the file; - for the standard input")
    source.add_argument(
        "--column",
        metavar="NAME",
        help="the CSV column, the JSON field, or the case of bench (default: found by its name)",
    )
    source.add_argument(
        "--unit",
        choices=tuple(SECONDS),
        help="of the latencies (default: told by the name, such as latency_ms)",
    )
    source.add_argument(
        "--malformed",
        choices=("refuse", "skip"),
        default="refuse",
        help="what to do about a malformed line (default: %(default)s)",
    )
    load = plan.add_argument_group("replay")
    load.add_argument(
        "--rate",
        type=positive_number(MAX_RATE, "per second"),
        default=100.0,
        metavar="N",
        help="publish requests per second and topic, "
        f"above 0 and up to {MAX_RATE:g} (default: %(default)g)",
    )
    load.add_argument(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        default=1,
        metavar="N",
        help="where the random draws start, 0 or above (default: %(default)s)",
    )
    grid = plan.add_argument_group("settings", "Lists are separated by commas.")
    grid.add_argument(
        "--hedge-delays",
        type=listed(number_between(MIN_HEDGE_DELAY, MAX_HEDGE_DELAY, "seconds")),
        metavar="LIST",
        help=f"in seconds, each {MIN_HEDGE_DELAY:g} to {MAX_HEDGE_DELAY:g} "
        "(default: some that suit the latencies)",
    )
    grid.add_argument(
        "--percentile-delay",
        type=float,
        metavar="P",
        help="try a measured delay too, HedgeDelay.percentile(P), such as 0.95",
    )
    grid.add_argument(
        "--refill-ratios",
        type=listed(number_between(MIN_REFILL_RATIO, MAX_REFILL_RATIO)),
        default=REFILL_RATIOS,
        metavar="LIST",
        help=f"each {MIN_REFILL_RATIO:g} to {MAX_REFILL_RATIO:g} "
        f"(default: {','.join(f'{ratio:g}' for ratio in REFILL_RATIOS)})",
    )
    grid.add_argument(
        "--max-tokens",
        type=whole_number(MIN_TOKENS, MAX_TOKENS),
        default=HedgingSettings().max_tokens,
        metavar="N",
        help=f"{MIN_TOKENS} to {MAX_TOKENS} (default: %(default)s)",
    )
    grid.add_argument(
        "--budget",
        type=number_between(0, 1),
        default=0.02,
        metavar="SHARE",
        help="the share of extra requests that is allowed, 0 to 1 (default: %(default)g)",
    )
    output = plan.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    output.add_argument(
        "--plot",
        type=plot_path,
        metavar="FILE",
        help=f"draw latencies and costs into FILE ({', '.join(PLOT_SUFFIXES)})",
    )
