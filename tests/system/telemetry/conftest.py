"""One tracer provider for all tests: OpenTelemetry takes one a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider


class Recorder(SpanProcessor):
    """Keeps the spans that have ended, and lets a test add a processor of its own."""

    def __init__(self) -> None:
        self._ended: list[ReadableSpan] = []
        self._added = SpanProcessor()
        self.clear = self._ended.clear

    def spans(self) -> list[ReadableSpan]:
        """Return the spans that have ended, in order of their start."""
        return sorted(self._ended, key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]

    @contextmanager
    def also(self, processor: SpanProcessor) -> Iterator[None]:
        """Let another processor see all spans, after they are kept."""
        self._added = processor
        try:
            yield
        finally:
            self._added = SpanProcessor()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._added.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        self._ended.append(span)
        self._added.on_end(span)


@pytest.fixture(scope="session")
def _recorder() -> Recorder:
    recorder = Recorder()
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # else another test of this process has set it
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    provider.add_span_processor(recorder)
    return recorder


@pytest.fixture
def recorder(_recorder: Recorder) -> Recorder:
    """Keep the spans of one test."""
    _recorder.clear()
    return _recorder
