"""The official client's own tests, run against ``HedgedPublisher``."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.official.exclusions import Hedging, excluded

pytestmark = pytest.mark.official

_PROJECT: Final = Path(__file__).parents[2]
_TIMEOUT_SECONDS: Final = 300.0
_DISCARD: Final = "http://127.0.0.1:9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What the official tests came to, as ``module::test``.

    Attributes:
        passed: The tests that passed.
        failed: How each other one failed.
    """

    passed: frozenset[str]
    failed: dict[str, str]


@pytest.mark.parametrize("hedging", ["off", "on"])
def test_the_official_tests_pass(official_tests: Path, hedging: Hedging) -> None:
    """Every official test passes but the excluded ones, and each of those fails."""
    outcomes = _run(official_tests, hedging)
    exclusions = excluded(hedging)
    print(f"hedging {hedging}: {len(outcomes.passed)} passed, {len(outcomes.failed)} failed")

    unexpected = {test: how for test, how in outcomes.failed.items() if test not in exclusions}
    assert not unexpected, "\n\n".join(f"{test}\n{how}" for test, how in unexpected.items())
    superfluous = {test: why for test, why in exclusions.items() if test in outcomes.passed}
    assert not superfluous, f"these pass, so they must not be excluded: {superfluous}"
    unknown = exclusions.keys() - outcomes.failed.keys()
    assert not unknown, f"excluded, but there are no such tests: {sorted(unknown)}"


def _run(folder: Path, hedging: Hedging) -> Outcomes:
    """Run the official tests in an interpreter of their own.

    Args:
        folder: Where they are.
        hedging: Whether the publisher hedges.
    """
    # Settings of their own: ours turn warnings into errors.
    (folder / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    results = folder / f"hedging-{hedging}.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-q"]
    command += ["-p", "tests.official.replacement", f"--hedging={hedging}"]
    command += [f"--junitxml={results}", "tests/unit/pubsub_v1/publisher"]
    # Many of these tests publish to the real service and do not look at what becomes of it. They
    # shall not get that far: gRPC connects through this proxy, and there is none.
    environment = {**os.environ, "PYTHONPATH": str(_PROJECT), "grpc_proxy": _DISCARD}
    run = subprocess.run(  # noqa: S603
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
    )
    ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    assert run.returncode in ended, f"{run.stdout}\n{run.stderr}"
    return _read(results)


def _read(results: Path) -> Outcomes:
    passed, failed = set(), {}
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - pytest has just written it
        test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if problems := [child.text or "" for child in case if child.tag in ("error", "failure")]:
            failed[test] = "\n".join(problems)
        elif case.find("skipped") is None:
            passed.add(test)
    return Outcomes(passed=frozenset(passed), failed=failed)
