"""The README's table of differences from the official client: each line has a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_DIFFERENCES = "tests/system_emulated/parity/differences.py"

# The first words of a line, and what holds it to the truth: a test, or a case of the parity script.
_TESTS = {
    "a failure of any kind": (
        "tests/system/test_credentials.py::test_credentials_that_cannot_be_refreshed",
        "tests/system/test_rules.py::test_r8_a_closed_channel",
        "tests/system/test_rules.py::test_r8_a_users_code_that_raises",
    ),
    "an oversize message under flow control": (
        f"{_DIFFERENCES}::an oversize message under flow control that blocks",
    ),
    "`publish()` after a full batch has failed": (
        f"{_DIFFERENCES}::after a full batch has failed",
    ),
    "an attribute called `retry` or `timeout`": (
        f"{_DIFFERENCES}::attributes called retry and timeout",
    ),
    "messages with different `retry=` or `timeout=`": (
        f"{_DIFFERENCES}::two timeouts in one batch",
        "tests/unit/test_batcher.py::test_policies_never_share_a_batch",
    ),
    "a request that gRPC refuses for its size": (
        "tests/system/test_publisher.py::test_a_server_with_a_size_limit_of_its_own",
    ),
    "the end of the `with` block": (
        "tests/system/test_publisher.py::test_the_with_block_leaves_nothing_behind",
    ),
    "the end of the interpreter": (
        "tests/system/test_process.py::test_exit_right_after_publish",
        "tests/system/test_process.py::test_exit_waits_a_bounded_time_and_counts_what_is_lost",
    ),
    "`fork`": (
        "tests/system/test_process.py::test_fork_with_everything_under_way",
        "tests/system/test_process.py::test_prefork_server",
    ),
    "connections": (
        "tests/system/connections/test_faults.py::"
        "test_without_a_fault_only_hedges_use_the_second_connection",
        "tests/system/connections/test_frozen.py::test_after_a_thaw_no_connection_leaks",
    ),
    "threads": ("tests/system/test_publisher.py::test_threads_do_not_grow_with_stalled_batches",),
    "done-callbacks": ("tests/system/test_publisher.py::test_a_callback_that_blocks_harms_nobody",),
    "each request": (f"{_DIFFERENCES}::headers of a request",),
    "OpenTelemetry": ("tests/system/telemetry/test_spans.py::test_what_hedging_adds",),
    "DEBUG logging": ("tests/system/test_publisher.py::test_debug_logging_does_not_block",),
    "`retry`": (f"{_DIFFERENCES}::a retry of another type",),
    "a topic that is not text": (f"{_DIFFERENCES}::a topic that is no text",),
    "refused when it is made": (
        "tests/system/test_rules.py::test_ordering",
        "tests/system/test_rules.py::test_the_delay_must_be_below_the_rpc_timeout",
        "tests/system/test_rules.py::test_transports_without_cancellable_calls",
    ),
}


def _lines() -> list[str]:
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("<!-- differences -->")[2].partition("<!-- end of differences -->")[0]
    rows = [row.split("|")[1].strip() for row in table.strip().splitlines()]
    return rows[2:]  # without the heading


def _names(path: Path) -> set[str]:
    """Return the names of the tests in a file, and the titles of its parity cases."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            names.add(str(node.args[0].value))
    return names


def test_each_line_has_a_test() -> None:
    """No line of the table stands there without one, and none has gone from it."""
    lines = _lines()
    assert len(lines) == len(_TESTS)
    for line, start in zip(lines, _TESTS, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize("test", [test for tests in _TESTS.values() for test in tests])
def test_the_test_exists(test: str) -> None:
    """What is said to test a line is there."""
    path, _, name = test.partition("::")
    assert name in _names(_ROOT / path)
