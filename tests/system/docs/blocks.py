"""The code blocks of a Markdown page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A code block.

    Attributes:
        path: The page.
        line: The line of the page on which the code begins, from 1.
        language: The first word after the fence; empty for a block without one, or an indented one.
        argument: What else stands after the fence: what a directive is about.
        code: What is in it.
    """

    path: Path
    line: int
    language: str
    argument: str
    code: str

    @property
    def where(self) -> str:
        """The page and the line, for messages."""
        return f"{page_name(self.path)}:{self.line}"

    @property
    def first_line(self) -> str:
        """The first line that is not empty: what a block is known by."""
        return next((line for line in self.code.splitlines() if line.strip()), "")


def page_name(path: Path) -> str:
    """The page as the project knows it: ``docs/settings.md``."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def pages() -> list[Path]:
    """The pages whose code is run: the README, and whatever is in ``docs``."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """The code blocks of a page, in order; those in lists and quotations too."""
    found = []
    for token in MarkdownIt("commonmark").parse(path.read_text(encoding="utf-8")):
        if token.type not in ("fence", "code_block") or token.map is None:
            continue
        language, _, argument = token.info.strip().partition(" ")
        found.append(
            Block(
                path=path,
                line=token.map[0] + (2 if token.type == "fence" else 1),
                language=language,
                argument=argument.strip(),
                code=token.content,
            )
        )
    return found
