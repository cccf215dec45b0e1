"""What the documentation lists is what there is: names, settings, options, differences."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import ModuleType

import click
import pytest

import hedged_pubsub.retry
import hedged_pubsub.testing
from hedged_pubsub import HedgingSettings, HedgingStats
from hedged_pubsub._core import settings
from hedged_pubsub.cli.arguments import COMMAND

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")

# The first words of a line of the README's table of differences, and the tests of it: functions
# in the folder `tests`.
DIFFERENCES = {
    "° a failure of any kind": """
        test_a_closed_channel test_credentials_that_cannot_be_refreshed
        test_arguments_that_end_a_publish test_no_thread_for_a_batch
        test_r8_a_users_code_that_raises""",
    "an oversize message under flow control": "an_oversize_message_under_flow_control_that_blocks",
    "`publish()` after a full batch has failed": "after_a_full_batch_has_failed",
    "an attribute called `retry` or `timeout`": """
        attributes_called_retry_and_timeout test_arguments_that_end_a_publish""",
    "messages with different `retry=` or `timeout=`": """
        two_timeouts_in_one_batch test_policies_never_share_a_batch""",
    "after an outage": "test_r16_proof_ends_the_backoff test_outage test_r17_back_within_a_second",
    "a connection that is lost": "test_r17_lost_connections_cost_no_backoff",
    "messages that fail, with nobody": """
        test_a_failed_batch_that_nobody_asks_for test_nothing_can_be_connected""",
    "an access token": "test_r14_a_token_that_takes_its_time test_one_refresh_for_all_requests",
    "a request that gRPC refuses for its size": "test_a_server_with_a_size_limit_of_its_own",
    "° the end of the `with` block": """
        test_the_with_block_leaves_nothing_behind
        test_all_batches_of_an_ordering_key_are_waited_for""",
    "° an exception from a signal handler": """
        test_an_exception_at_each_place""",
    "a signal handler that calls": "test_an_interruption_at_each_place",
    "the end of the interpreter": """
        test_exit_right_after_publish test_exit_waits_a_bounded_time_and_counts_what_is_lost""",
    "`fork`": "test_fork_with_everything_under_way test_prefork_server",
    "connections": """
        test_only_hedges_use_the_second_connection
        test_after_a_thaw_no_connection_leaks""",
    "threads": "test_stalled_batches_take_few_objects_and_no_threads",
    "done-callbacks": """
        test_a_callback_that_behaves_badly test_a_done_callback_that_raises""",
    "° an oversize message as the first of an ordering key": """
        test_an_oversize_message_does_not_block_its_ordering_key""",
    "each request": "headers_of_a_request",
    "OpenTelemetry": "test_what_hedging_adds",
    "DEBUG logging": "test_debug_logging_tells_no_payload",
    "`retry`": "a_retry_of_another_type",
    "a topic that is not text": "a_topic_that_is_not_text",
    "refused when it is made": """
        test_r12_ordering test_the_hedge_delay_must_be_below_both_timeouts
        test_r12_transports_without_cancellable_calls""",
}


def test_each_difference_has_a_test() -> None:
    """Each line of the table is known here, and so is each test."""
    table = README.partition("<!-- differences -->")[2].partition("<!-- end of differences -->")[0]
    _, _, *lines = (row.split("|")[1].strip() for row in table.strip().splitlines())
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    functions = {name for text in sources for name in re.findall(r"^ *def (\w+)\(", text, re.M)}

    for line, (start, tests) in zip(lines, DIFFERENCES.items(), strict=True):
        assert line.startswith(start)
        assert not set(tests.split()) - functions


@pytest.mark.parametrize(
    "module",
    [hedged_pubsub, hedged_pubsub.retry, hedged_pubsub.testing],
    ids=lambda module: module.__name__,
)
def test_public_names_are_sorted_documented_and_there(module: ModuleType) -> None:
    """``__all__`` is sorted, every name in it exists, and the API reference has the same."""
    check_public_names(module)


def check_public_names(module: ModuleType) -> None:
    """Compare a module with the API reference."""
    public = list(module.__all__)
    documented = re.findall(
        rf"auto(?:class|data|exception|function):: {re.escape(module.__name__)}\.(\w+)(?:\(\))?$",
        (DOCS / "api.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )

    assert all(hasattr(module, name) for name in public)
    # The version is a number in the documentation, not a class.
    assert sorted(documented) == [name for name in public if name != "__version__"]


@pytest.mark.parametrize("page", ["README.md", "docs/settings.md"])
def test_documented_settings_are_those_of_the_code(page: str) -> None:
    """The tables of settings name the defaults and bounds that are enforced."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = {
        row[0]: tuple(float(number) for number in re.findall(r"[\d.]+", f"{row[1]} {row[2]}"))
        for row in re.findall(r"^\| `(\w+)` \| (\d[^|]*) \| (\d[^|]*) \|", text, re.MULTILINE)
    }
    s, defaults = settings, HedgingSettings()

    assert rows == {
        "hedge_delay": (defaults.initial_hedge_delay, s.MIN_HEDGE_DELAY, s.MAX_HEDGE_DELAY),
        "max_tokens": (defaults.max_tokens, s.MIN_TOKENS, s.MAX_TOKENS),
        "refill_ratio": (defaults.refill_ratio, s.MIN_REFILL_RATIO, s.MAX_REFILL_RATIO),
    }


@pytest.mark.parametrize(
    ("page", "described"), [("settings.md", HedgingSettings), ("observability.md", HedgingStats)]
)
def test_every_attribute_is_documented(page: str, described: type) -> None:
    """Settings, and the numbers of a snapshot, are each named on the page about them."""
    text = (DOCS / page).read_text(encoding="utf-8")
    names = {field.name for field in dataclasses.fields(described)}
    assert names <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize("name", COMMAND.commands)
def test_every_option_is_documented(name: str) -> None:
    """A command has a table with its options, in the order of ``--help``, and their defaults."""
    page = (DOCS / "command.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## `hedged-pubsub {name}`\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip(" `") for cell in row.split("|")[1:-1]]
        for row in section.splitlines()
        if row.startswith("| `--")
    ]
    options = [one for one in COMMAND.commands[name].params if isinstance(one, click.Option)]
    assert [row[0] for row in rows] == [option.opts[-1] for option in options]
    for (_, _, documented, _), option in zip(rows, options, strict=True):
        # Other defaults are made up from several options, and said in words.
        if type(option.default) in (int, float, str):
            assert documented == str(option.default), option.name
