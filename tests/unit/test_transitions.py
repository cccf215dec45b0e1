"""The picture and the table of transitions in the documentation are those of the engine."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from hedged_pubsub._core.engine import TRANSITIONS, Transition
from hedged_pubsub._core.states import State, Step

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REMEDY = "run: python docs/transitions.py"


@pytest.fixture
def generator() -> dict[str, Any]:
    """What ``docs/transitions.py`` defines."""
    return runpy.run_path(str(DOCS / "transitions.py"))


def test_the_picture_is_up_to_date(generator: dict[str, Any]) -> None:
    """``transitions.svg`` is what the generator draws of today's table."""
    assert (DOCS / "transitions.svg").read_text(encoding="utf-8") == generator["diagram"](), REMEDY


def test_the_page_is_up_to_date(generator: dict[str, Any]) -> None:
    """How it works has today's table, and shows the picture."""
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")

    assert generator["page"](page) == page, REMEDY
    assert "{image} transitions.svg" in page


def test_the_picture_shows_every_transition(generator: dict[str, Any]) -> None:
    """Each step and its rule is drawn as often as the table has it: none hides another."""
    drawn = re.findall(r'>(?:↻ )?([^<>]+) <tspan class="rule">(R\d+)<', generator["diagram"]())
    assert sorted(drawn) == sorted(
        (step.value, transition.rule) for (_, step), transition in TRANSITIONS.items()
    )


def test_a_transition_without_a_way_is_an_error(generator: dict[str, Any]) -> None:
    """A new transition between two boxes is not left out of the picture."""
    back = Transition(State.NEW, TRANSITIONS[State.NEW, Step.COMMITTED].action, "R1")
    table = {**TRANSITIONS, (State.HEDGES_ONLY, Step.COMMITTED): back}
    generator["diagram"].__globals__["TRANSITIONS"] = table

    with pytest.raises(ValueError, match=r"a way from State\.HEDGES_ONLY to State\.NEW"):
        generator["diagram"]()


def test_every_rule_of_the_table_is_explained() -> None:
    """The rules that the picture names stand on the same page."""
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    assert {transition.rule for transition in TRANSITIONS.values()} <= set(
        re.findall(r"^\| (R\d+) \|", page, re.MULTILINE)
    )
