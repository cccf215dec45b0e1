"""Run the code blocks of one page, in order: ``python -m tests.system.docs.run_page PAGE``.

The page has this process and the current directory for itself. Blocks run in one namespace, each
with what the ones before it have left, as a reader types them in. By language:

* ``python`` is executed, ``await`` included, on one event loop. A block whose first line is a
  comment with a file's name, ``# test_orders.py``, is written to that file; tests are run by
  pytest, ``conftest.py`` is left for them, and any other file is run as a program.
* ``console``: what follows ``$`` is a command, the lines below it are what it prints.
  ``sh``: each line is a command. See `commands` for how they are run.
* ``diff``: both sides are run, the old one first.
* ``json`` is read.
* MyST's directives are for Sphinx; a file that one shows is an example with a test.

A block in another language is an error, unless `hidden` lists it as one that is not run.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from tests.system.docs.blocks import ROOT, Block, blocks, page_name
from tests.system.docs.commands import (
    Line,
    Shell,
    WrongCommandError,
    console_lines,
    shell_lines,
)
from tests.system.docs.hidden import NOT_RUN, SETUP

# They hold no code, or nothing but code that is run elsewhere.
DIRECTIVES = ("{eval-rst}", "{image}", "{include}", "{literalinclude}", "{toctree}")


class WrongBlockError(Exception):
    """A block that does not do what it says, or that nobody knows how to run."""


class PageRunner:
    """Runs blocks one after the other, in one namespace.

    Args:
        path: The page.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._setup = dict(SETUP.get(page_name(path), {}))
        self._not_run = dict(NOT_RUN.get(page_name(path), {}))
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._loop = asyncio.new_event_loop()
        self._shell = Shell()
        self._languages: dict[str, Callable[[Block], None]] = {
            "console": self._console,
            "diff": self._diff,
            "json": self._json,
            "python": self._python,
            "sh": self._sh,
        }

    def run(self) -> None:
        """Run the page.

        Raises:
            Exception: What the block raised, or `WrongBlockError` or `WrongCommandError`.
        """
        try:
            for block in blocks(self._path):
                self._run(block)
        finally:
            self._shell.end()
            self._loop.close()
        if unused := {*self._setup, *self._not_run}:
            raise WrongBlockError(f"{page_name(self._path)} has no blocks that begin: {unused}")

    def _run(self, block: Block) -> None:
        if self._not_run.pop(block.first_line, None) is not None:
            return
        if setup := self._setup.pop(block.first_line, None):
            self._execute(setup, f"<set-up of {block.where}>", line=1)
        if block.language in DIRECTIVES:
            _check_directive(block)
        elif run := self._languages.get(block.language):
            run(block)
        else:
            raise WrongBlockError(
                f"{block.where}: nobody knows how to run a block in {block.language!r}; teach "
                f"{Path(__file__).name}, or list it in NOT_RUN with the reason"
            )

    def _python(self, block: Block) -> None:
        if named := re.fullmatch(r"# (\w+\.py)", block.first_line):
            self._file(block, named[1])
        else:
            self._execute(block.code, str(block.path), block.line)

    def _execute(self, code: str, filename: str, line: int) -> None:
        compiled = compile(
            # So that a traceback names the page's line, and shows it.
            "\n" * (line - 1) + code,
            filename,
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        if compiled.co_flags & inspect.CO_COROUTINE:
            self._loop.run_until_complete(eval(compiled, self._names))  # noqa: S307
        else:
            # One loop for all of the page, as a program has: gRPC's asyncio writes to stderr now
            # and then when something arrives for a loop that is closed and another one runs.
            with mock.patch.object(asyncio, "run", self._loop.run_until_complete):
                exec(compiled, self._names)  # noqa: S102

    def _file(self, block: Block, name: str) -> None:
        Path(name).write_text(block.code, encoding="utf-8")
        if name.startswith("test_"):
            self._commands(block, [Line(text=f"pytest -p no:cacheprovider {name}", output="")])
        elif name != "conftest.py":
            self._commands(block, [Line(text=f"python {name}", output="")])

    def _console(self, block: Block) -> None:
        self._commands(block, console_lines(block.code))

    def _sh(self, block: Block) -> None:
        self._commands(block, shell_lines(block.code))

    def _commands(self, block: Block, lines: list[Line]) -> None:
        for line in lines:
            try:
                self._shell.run(line)
            except WrongCommandError as error:
                raise WrongBlockError(f"{block.where}: {line.text}: {error}") from error

    def _diff(self, block: Block) -> None:
        for sign in "-+":
            side = [line[1:] if line[:1] in (sign, " ") else "" for line in block.code.splitlines()]
            self._execute("\n".join(side), str(block.path), block.line)

    def _json(self, block: Block) -> None:
        json.loads(block.code)


def _check_directive(block: Block) -> None:
    shown = (block.path.parent / block.argument).resolve()
    if block.language == "{literalinclude}" and shown.parent != ROOT / "examples":
        raise WrongBlockError(f"{block.where}: what it shows has no test: {block.argument}")
    if "code-block::" in block.code:
        raise WrongBlockError(f"{block.where}: write code as a block of the page, which is run")


if __name__ == "__main__":
    PageRunner(Path(sys.argv[1])).run()
