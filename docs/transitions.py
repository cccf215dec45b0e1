"""Draw the attempt engine's transition table, and write it into ``how-it-works.md``.

Run ``python docs/transitions.py`` after a change to the table; a test compares what is committed
with what this makes. The places of the boxes are set by hand; what stands in and between them
comes from the table. A transition that has no way to be drawn is an error, never left out.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from hedged_pubsub._core.engine import TRANSITIONS
from hedged_pubsub._core.states import State

DIAGRAM: Final = Path(__file__).with_name("transitions.svg")
PAGE: Final = Path(__file__).with_name("how-it-works.md")
MARKERS: Final = ("<!-- transitions -->\n", "<!-- end of transitions -->")

_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 400" width="860" height="400" \
role="img" aria-labelledby="title" font-family="sans-serif" font-size="12">
  <title id="title">The states of a batch and what leads from one to another; the table below the \
picture says the same</title>
  <style>
    .box { fill: #eef3fe; stroke: #5b8def; stroke-width: 1.5 }
    .end { fill: #e5f4ec; stroke: #18794e }
    .state { font-weight: bold; font-size: 14px } .step { fill: #333 }
    .rule { fill: #8a5200; font-weight: bold } .line { stroke: #777; stroke-width: 1.5; fill: none }
  </style>
  <defs><marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" \
orient="auto" markerUnits="userSpaceOnUse"><path d="M0 0 L8 4 L0 8 z" fill="#777"/></marker></defs>
  <rect width="860" height="400" rx="6" fill="#fff"/>
"""


@dataclass(frozen=True, slots=True)
class _Box:
    """Where a state is drawn, in pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height

    @property
    def middle(self) -> int:
        return self.left + self.width // 2


_BOXES: Final = {
    State.NEW: _Box(20, 148, 90, 82),
    State.BACKING_OFF: _Box(270, 14, 190, 82),
    State.ORIGINAL_IN_FLIGHT: _Box(270, 148, 190, 82),
    State.HEDGES_ONLY: _Box(270, 282, 190, 82),
    State.DECIDED: _Box(730, 14, 110, 372),
}
# Up and down between the boxes in the middle: the arrow's x, and which side of it has the label.
_VERTICAL: Final = {
    (State.ORIGINAL_IN_FLIGHT, State.BACKING_OFF): (310, "end"),
    (State.BACKING_OFF, State.ORIGINAL_IN_FLIGHT): (420, "start"),
    (State.ORIGINAL_IN_FLIGHT, State.HEDGES_ONLY): (365, "start"),
}
# To the right, with nothing in the way.
_STRAIGHT: Final = {
    (State.NEW, State.ORIGINAL_IN_FLIGHT),
    (State.BACKING_OFF, State.DECIDED),
    (State.ORIGINAL_IN_FLIGHT, State.DECIDED),
    (State.HEDGES_ONLY, State.DECIDED),
}
# To the right, below all that is in the way.
_BELOW: Final = {(State.NEW, State.DECIDED)}


def diagram() -> str:
    """Draw the table as an SVG.

    Raises:
        ValueError: If a state has no place, or two states no way between them.
    """
    if missing := set(State) - set(_BOXES):
        raise ValueError(f"give these states a place in _BOXES: {missing}")
    edges: defaultdict[tuple[State, State], list[tuple[str, str]]] = defaultdict(list)
    for (state, step), transition in TRANSITIONS.items():
        edges[state, transition.to].append((step.value, transition.rule))
    drawn = [_state(state, edges.pop((state, state), [])) for state in State]
    drawn += [_arrows(*edge, labels) for edge, labels in edges.items()]
    return _HEAD + "".join(drawn) + "</svg>\n"


def table() -> str:
    """Return the table in Markdown, in its own order."""
    rows = [
        f"| {state.value} | {step.value} | {transition.to.value} | {transition.rule} |\n"
        for (state, step), transition in TRANSITIONS.items()
    ]
    return "".join(["| state | step | next state | rule |\n|---|---|---|---|\n", *rows])


def page(text: str) -> str:
    """Return a page with the table between its markers.

    Raises:
        ValueError: If there is not one of each marker.
    """
    start, end = MARKERS
    before, rest = text.split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n{table()}\n{end}{after}"


def _state(state: State, stays: list[tuple[str, str]]) -> str:
    """Draw a box, with the steps that do not leave it inside."""
    box = _BOXES[state]
    kind = "box end" if state is State.DECIDED else "box"
    first = box.top + box.height // 2 + 5 - 11 * len(stays)
    lines = [
        f'<rect class="{kind}" x="{box.left}" y="{box.top}" width="{box.width}" '
        f'height="{box.height}" rx="8"/>',
        f'<text class="state" x="{box.middle}" y="{first}" text-anchor="middle">'
        f"{escape(state.value)}</text>",
    ]
    lines += [
        _label(box.middle, first + 22 * number, "middle", f"↻ {step}", rule)
        for number, (step, rule) in enumerate(stays, 1)
    ]
    return _lines(lines)


def _arrows(state: State, to: State, labels: list[tuple[str, str]]) -> str:
    """Draw an arrow for each transition between two boxes."""
    source, target = _BOXES[state], _BOXES[to]
    lines: list[str] = []
    for number, (step, rule) in enumerate(labels, 1):
        if (state, to) in _STRAIGHT:
            y = source.top + source.height * number // (len(labels) + 1) + 4
            lines.append(_line(f"M{source.right} {y} H{target.left}"))
            lines.append(_label((source.right + target.left) // 2, y - 5, "middle", step, rule))
        elif (state, to) in _BELOW and len(labels) == 1:
            y = target.bottom - 6
            lines.append(_line(f"M{source.middle} {source.bottom} V{y} H{target.left}"))
            lines.append(_label(source.middle + 10, y - 6, "start", step, rule))
        elif (state, to) in _VERTICAL:
            x, anchor = _VERTICAL[state, to]
            down = source.top < target.top
            start, end = (source.bottom, target.top) if down else (source.top, target.bottom)
            if number == 1:  # one arrow for all that lead there
                lines.append(_line(f"M{x} {start} V{end}"))
            offset = -9 if anchor == "end" else 9
            y = (start + end) // 2 + 4 + 8 * (2 * number - 1 - len(labels))
            lines.append(_label(x + offset, y, anchor, step, rule))
        else:
            raise ValueError(f"give a way from {state} to {to}, for {len(labels)} transitions")
    return _lines(lines)


def _line(path: str) -> str:
    return f'<path class="line" d="{path}" marker-end="url(#head)"/>'


def _label(x: int, y: int, anchor: str, step: str, rule: str) -> str:
    return (
        f'<text class="step" x="{x}" y="{y}" text-anchor="{anchor}">'
        f'{escape(step)} <tspan class="rule">{escape(rule)}</tspan></text>'
    )


def _lines(elements: list[str]) -> str:
    return "".join(f"  {element}\n" for element in elements)


if __name__ == "__main__":
    DIAGRAM.write_text(diagram(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
