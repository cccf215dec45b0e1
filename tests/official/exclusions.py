"""Official tests that cannot pass with ``HedgedPublisher``, each with its reason.

They are run all the same, and must fail: an exclusion that is no longer needed has to go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Hedging = Literal["off", "on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """One reason, and the tests it holds for.

    Attributes:
        reason: Why these tests cannot pass.
        hedging: With which setting they cannot.
        tests: As ``module::test``.
    """

    reason: str
    hedging: tuple[Hedging, ...] = ("on",)
    tests: tuple[str, ...]


EXCLUSIONS: Final = (
    Exclusion(
        reason="expects the generated client to be the direct superclass of the publisher's class",
        hedging=("off", "on"),
        tests=("test_publisher_client::test_api_property_proxy_to_generated_client",),
    ),
    Exclusion(
        reason="enables ordering, which excludes hedging",
        tests=(
            "test_publisher_client::test_message_ordering_enabled",
            "test_publisher_client::test_ordered_sequencer_cleaned_up",
            "test_publisher_client::test_publish_empty_ordering_key_when_message_ordering_enabled",
            "test_publisher_client::test_publish_with_ordering_key",
            "test_publisher_client::test_publish_with_ordering_key_uses_extended_retry_deadline",
            "test_publisher_client::test_publish_with_ordering_key_with_no_retry",
            "test_publisher_client::test_resume_publish",
            "test_publisher_client::test_resume_publish_no_sequencer_found",
        ),
    ),
    Exclusion(
        reason="passes sentinels for retry or timeout, which hedging must be able to interpret",
        tests=(
            "test_publisher_client::test_publish_custom_retry_overrides_configured_retry",
            "test_publisher_client::test_publish_custom_timeout_overrides_configured_timeout",
        ),
    ),
    Exclusion(
        reason="puts a mock in the place of the transport, which has no gRPC calls to cancel",
        tests=("test_publisher_client::test_init_client_options_pass_through",),
    ),
    Exclusion(
        reason="puts a mock in the place of the private batch, and expects it to be published to",
        tests=(
            "test_publisher_client::test_opentelemetry_flow_control_exception",
            "test_publisher_client::test_publish",
            "test_publisher_client::test_publish_attrs_bytestring",
            "test_publisher_client::test_publish_error_exceeding_flow_control_limits",
            "test_publisher_client::test_publish_new_batch_needed",
            "test_publisher_client::test_stop",
        ),
    ),
    Exclusion(
        reason="puts a mock in the place of the private sequencer, and expects its error",
        tests=(
            "test_publisher_client::test_opentelemetry_publisher_batching_exception[False]",
            "test_publisher_client::test_opentelemetry_publisher_batching_exception[True]",
        ),
    ),
    Exclusion(
        reason="expects the private flow controller to be given messages, rather than their sizes",
        tests=("test_publisher_client::test_opentelemetry_context_propagation",),
    ),
    Exclusion(
        reason="expects a private method to start a thread for the batches' latency",
        tests=("test_publisher_client::test_commit_thread_created_on_publish",),
    ),
)


def excluded(hedging: Hedging) -> dict[str, str]:
    """Return the reasons by test, for this setting."""
    return {
        test: exclusion.reason
        for exclusion in EXCLUSIONS
        if hedging in exclusion.hedging
        for test in exclusion.tests
    }
