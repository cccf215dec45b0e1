"""The official client's own tests, of its source distribution, run against ``HedgedPublisher``."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DISTRIBUTION: Final = "google-cloud-pubsub"

# Tests of test_publisher_client that cannot pass, by the reason. They are run all the same, and
# must fail: one that need not be excluded any more has to go from here.
ALWAYS_EXCLUDED: Final = {
    "expects the generated client to be the direct superclass of the publisher's class": """
        test_api_property_proxy_to_generated_client""",
}
EXCLUDED_WITH_HEDGING: Final = {
    "enables ordering, which excludes hedging": """
        test_message_ordering_enabled
        test_ordered_sequencer_cleaned_up
        test_publish_empty_ordering_key_when_message_ordering_enabled
        test_publish_with_ordering_key
        test_publish_with_ordering_key_uses_extended_retry_deadline
        test_publish_with_ordering_key_with_no_retry
        test_resume_publish
        test_resume_publish_no_sequencer_found""",
    "passes sentinels for retry or timeout, which hedging must be able to interpret": """
        test_publish_custom_retry_overrides_configured_retry
        test_publish_custom_timeout_overrides_configured_timeout""",
    "puts a mock in the place of the transport, which has no gRPC calls to cancel": """
        test_init_client_options_pass_through""",
    "puts a mock in the place of the private batch, and expects it to be published to": """
        test_opentelemetry_flow_control_exception
        test_publish
        test_publish_attrs_bytestring
        test_publish_error_exceeding_flow_control_limits
        test_publish_new_batch_needed
        test_stop""",
    "puts a mock in the place of the private sequencer, and expects its error": """
        test_opentelemetry_publisher_batching_exception[False]
        test_opentelemetry_publisher_batching_exception[True]""",
    "expects the private flow controller to be given messages, rather than their sizes": """
        test_opentelemetry_context_propagation""",
    "asks a private attribute whether there are spans, which hedging makes itself": """
        test_open_telemetry_publisher_options[True]""",
    "expects a private method to start a thread for the batches' latency": """
        test_commit_thread_created_on_publish""",
}


@pytest.fixture(scope="session")
def official_tests(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the tests that belong to the installed release of the official client.

    Where they cannot be had, these tests are skipped with the reason; in CI they fail.
    """
    pytest.importorskip("flaky", reason="the official tests import flaky")
    release = f"{DISTRIBUTION}=={importlib.metadata.version(DISTRIBUTION)}"
    kept = pytestconfig.cache.mkdir("official") / release
    if not list(kept.glob("*.tar.gz")):
        _download(release, kept)
    (archive,) = kept.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("official")
    with tarfile.open(archive) as source:
        # Only these: the package beside them would be imported instead of the installed one.
        wanted = f"{archive.name.removesuffix('.tar.gz')}/tests/unit/pubsub_v1/"
        members = [member for member in source.getmembers() if member.name.startswith(wanted)]
        source.extractall(folder, members, filter="data")
    assert members, f"{archive.name} has no {wanted}"
    return folder / archive.name.removesuffix(".tar.gz")


def _download(release: str, folder: Path) -> None:
    """Have pip do it, which knows the index, the proxy and the certificates of this machine.

    What is downloaded appears in the folder only once all has gone well.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += [f"--no-binary={DISTRIBUTION}", f"--dest={folder}", release]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        unavailable = pytest.fail if os.environ.get("CI") else pytest.skip
        unavailable(f"pip cannot download the official tests: {done.stderr or done.stdout}")


@pytest.mark.parametrize(
    ("hedging", "exclusions"),
    [("off", ALWAYS_EXCLUDED), ("on", ALWAYS_EXCLUDED | EXCLUDED_WITH_HEDGING)],
    ids=["off", "on"],
)
def test_the_official_tests_pass(
    official_tests: Path, hedging: str, exclusions: dict[str, str]
) -> None:
    """Every official test passes but the excluded ones, and each of those fails."""
    passed, failed = _run(official_tests, hedging)
    print(f"hedging {hedging}: {len(passed)} passed, {len(failed)} failed")
    excluded = {
        f"test_publisher_client::{test}" for tests in exclusions.values() for test in tests.split()
    }

    unexpected = [f"{test}\n{how}" for test, how in failed.items() if test not in excluded]
    assert not unexpected, "\n\n".join(unexpected)
    passing = sorted(excluded & passed)
    assert not passing, "these pass, so they must not be excluded"
    assert excluded == set(failed), "some that are excluded do not exist"
    assert passed


def _run(folder: Path, hedging: str) -> tuple[set[str], dict[str, str]]:
    """Run them in a fresh interpreter; return what passed, and how each other one failed."""
    # Settings of their own: ours turn warnings into errors.
    (folder / "pytest.ini").write_text("[pytest]\njunit_family = xunit1\n")
    results = folder / f"hedging-{hedging}.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-q"]
    # A test that waits for a mock which nobody calls would wait for ever. The slowest takes 1 s.
    command += ["--timeout=5", "-p", "tests.official.replacement", f"--hedging={hedging}"]
    command += [f"--junitxml={results}", "tests/unit/pubsub_v1/publisher"]
    # Many of these tests publish to the real service and do not look at what becomes of it. They
    # shall not get that far: gRPC connects through this proxy, and there is none.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "grpc_proxy": "http://127.0.0.1:9"}
    run = subprocess.run(  # noqa: S603
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    assert run.returncode in ended, f"{run.stdout}\n{run.stderr}"
    passed, failed = set(), {}
    for case in ET.parse(results).iter("testcase"):  # noqa: S314 - pytest has just written it
        test = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if problems := [child.text or "" for child in case if child.tag in ("error", "failure")]:
            failed[test] = "\n".join(problems)
        elif case.find("skipped") is None:
            passed.add(test)
    return passed - failed.keys(), failed  # one that is run again has a case for each time
