"""What the documentation lists is what there is: options, settings, numbers, pages."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from hedged_pubsub import HedgingSettings, HedgingStats
from hedged_pubsub.cli.arguments import _parser

DOCS = Path(__file__).parents[2] / "docs"


def _page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (commands,) = (
        action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    return dict(commands.choices)


@pytest.mark.parametrize("name", _commands())
def test_every_option_is_documented(name: str) -> None:
    """A command has a table with its options, in the order of ``--help``, and their defaults."""
    section = _page("command.md").partition(f"\n## `hedged-pubsub {name}`\n")[2]
    rows = [
        [cell.strip(" `") for cell in row.split("|")[1:-1]]
        for row in section.partition("\n## ")[0].splitlines()
        if row.startswith("| `--")
    ]
    _, *flags = (action for action in _commands()[name]._actions if action.option_strings)
    assert [row[0] for row in rows] == [action.option_strings[-1] for action in flags]
    for (option, _, documented, _), action in zip(rows, flags, strict=True):
        # Other defaults are made up from several options, and said in words.
        if type(action.default) in (int, float, str):
            assert documented == str(action.default).removesuffix(".0"), option


@pytest.mark.parametrize(
    ("page", "described"), [("settings.md", HedgingSettings), ("observability.md", HedgingStats)]
)
def test_every_attribute_is_documented(page: str, described: type) -> None:
    """Settings, and the numbers of a snapshot, are each named on the page about them."""
    names = {field.name for field in dataclasses.fields(described)}
    assert names <= set(re.findall(r"`(\w+)`", _page(page)))


def test_every_page_is_in_the_contents() -> None:
    """A page that is added can be found."""
    contents = re.findall(r"^[\w-]+$", _page("index.md"), re.MULTILINE)
    assert {path.stem for path in DOCS.glob("*.md")} == {"index", *contents}
