"""Spans as plain data, to be compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opentelemetry.sdk.trace import ReadableSpan

_VARYING = {"timestamp", "exception.stacktrace", "exception.message", "messaging.message.id"}
"""Attributes that differ from run to run."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Described:
    """What of a span does not differ from run to run; relatives are named.

    Attributes:
        events: Each with its attributes.
    """

    name: str
    kind: str
    parent: str
    links: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    status: str
    events: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    scope: str


def describe(spans: Iterable[ReadableSpan]) -> list[Described]:
    """Describe spans, sorted; a relative that is not among them is named by a question mark."""
    spans = list(spans)
    names = {span.context.span_id: span.name for span in spans if span.context is not None}

    def name_of(span_id: int) -> str:
        return names.get(span_id, "?")

    return sorted(
        Described(
            name=span.name,
            kind=span.kind.name,
            parent="" if span.parent is None else name_of(span.parent.span_id),
            links=tuple(sorted(name_of(link.context.span_id) for link in span.links)),
            attributes=_plain(span.attributes or {}),
            status=f"{span.status.status_code.name} {span.status.description}",
            events=tuple((event.name, _plain(event.attributes or {})) for event in span.events),
            scope=span.instrumentation_scope.name if span.instrumentation_scope else "",
        )
        for span in spans
    )


def _plain(attributes: object) -> tuple[tuple[str, str], ...]:
    pairs = dict(attributes)  # type: ignore[call-overload]
    return tuple(
        sorted((key, "…" if key in _VARYING else repr(value)) for key, value in pairs.items())
    )
