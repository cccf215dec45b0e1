"""Run the code blocks of one page, in order: ``python -m tests.system.docs.page PAGE``.

The page has this process and the current directory for itself. Blocks run in one namespace, each
with what the ones before it have left, as a reader types them in. By language:

* ``python`` is executed, ``await`` included, on one event loop. A block whose first line is a
  comment with a file's name, ``# test_orders.py``, is written to that file; pytest runs tests.
* ``console``: what follows ``$`` is a command, the lines below it are what it prints.
  ``sh``: each line is a command.
* ``diff``: both sides are run, the old one first.
* ``json`` is read.
* MyST's directives are for Sphinx; a file that one shows is an example with a test.

A block in another language is an error.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any
from unittest import mock

from markdown_it import MarkdownIt
from packaging.requirements import Requirement

from tests.system.docs import hidden

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
"""The pages whose code is run: the README, and whatever is in ``docs``."""
_TESTED = "../examples/", "../tests/ecosystem/programs/"


class PageError(Exception):
    """A block or command that does not do what the page says, or that nobody knows how to run."""


def page_name(path: Path) -> str:
    """Return the name by which `hidden` knows a page: ``docs/settings.md``."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


class Page:
    """A page, whose blocks run one after the other in one namespace."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._setup = dict(hidden.SETUP.get(page_name(path), {}))
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._loop = asyncio.new_event_loop()
        self._servers: list[subprocess.Popen[str]] = []

    def run(self) -> None:
        """Run all blocks, with those in lists and quotations.

        Raises:
            Exception: What a block raised, or `PageError`.
        """
        try:
            for token in MarkdownIt("commonmark").parse(self._path.read_text(encoding="utf-8")):
                if token.type in ("fence", "code_block") and token.map is not None:
                    # The line of the page on which the code begins.
                    line = token.map[0] + (2 if token.type == "fence" else 1)
                    self._run(token.info.strip(), token.content, line)
        finally:
            for server in self._servers:
                server.terminate()
                _, errors = server.communicate(timeout=60)
            self._loop.close()
        if any(server.returncode for server in self._servers):
            raise PageError(f"hedged-pubsub serve: {errors}")
        if self._setup:
            raise PageError(f"{page_name(self._path)} has no blocks that begin: {set(self._setup)}")

    def _run(self, info: str, code: str, line: int) -> None:
        # By its first line that is not empty a block is known.
        first_line = next(filter(str.strip, code.splitlines()), "")
        where = f"{page_name(self._path)}:{line}"
        if setup := self._setup.pop(first_line, None):
            self._execute(setup, f"<set-up of {where}>", line=1)
        match info.split(" "):
            case ["python"]:
                self._python(code, line)
            case ["console"]:
                # Commands after `$`, and below each what it prints.
                nothing, *commands = re.split(r"^\$ ", code, flags=re.MULTILINE)
                if nothing or not commands:
                    raise PageError(f"{where}: a console block needs a command, after '$ '")
                for command in commands:
                    text, _, output = command.partition("\n")
                    self._command(text, output, where)
            case ["sh"]:
                for text in code.splitlines():
                    self._command(text, "", where)
            case ["diff"]:
                lines = code.splitlines()
                for sign in "-+":
                    side = [text[1:] if text[:1] in (sign, " ") else "" for text in lines]
                    self._execute("\n".join(side), str(self._path), line)
            case ["json"]:
                json.loads(code)
            case ["{literalinclude}", shown] if shown.startswith(_TESTED):
                pass
            case ["{eval-rst}" | "{image}" | "{include}" | "{toctree}", *_] if (
                "code-block::" not in code
            ):
                pass  # no code, or code that is run elsewhere
            case [language, *_]:
                raise PageError(f"{where}: nobody knows how to run a block in {language!r}")

    def _python(self, code: str, line: int) -> None:
        if not (named := re.match(r"# (\w+\.py)\n", code)):
            self._execute(code, str(self._path), line)
            return
        Path(named[1]).write_text(code, encoding="utf-8")
        if named[1].startswith("test_"):
            command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", named[1]]
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                raise PageError(f"{done.stdout}{done.stderr}")
        elif named[1] != "conftest.py":
            raise PageError(f"nobody knows what to do with {named[1]}")

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

    def _command(self, text: str, output: str, where: str) -> None:
        """Run a command line; commands can be joined by ``&&``."""
        for command in text.split(" && "):
            try:
                printed = self._call(shlex.split(command, comments=True))
            except Exception as error:
                raise PageError(f"{where}: {text}: {error}") from error
            if not re.search(_loosely(output), printed):
                raise PageError(f"{where}: the page shows\n{output}\nbut it prints\n{printed}")

    def _call(self, command: list[str]) -> str:
        """Run a command, or check it as far as that is quick, and return what it prints."""
        match [PurePath(command[0]).name, *command[1:]]:
            case ["export", assignment]:
                name, _, os.environ[name] = assignment.partition("=")
            case ["python3", "-m", "venv", *_] | ["pip", "install", "-q", "nox[uv]"] | ["nox"]:
                pass  # nox runs the tests, of which this is one; .ci/run runs it
            case ["pip", "install", *arguments]:
                for argument in arguments:
                    if not argument.startswith("-"):
                        _check_requirement(argument)
            case ["hedged-pubsub", "serve", *arguments]:
                return self._serve(arguments)
            case ["hedged-pubsub", *arguments]:
                return _call_ours(arguments)
            case _:
                raise PageError("nobody knows how to check this command")
        return ""

    def _serve(self, arguments: list[str]) -> str:
        """Start the server, and do what it tells its user to."""
        command = [sys.executable, "-m", "hedged_pubsub", "serve", *arguments, "--port", "0"]
        server = subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._servers.append(server)
        assert server.stdout is not None
        told = [server.stdout.readline() for _shell in ("sh", "fish", "PowerShell")]
        self._call(shlex.split(told[0]))
        return "".join(told)


def _call_ours(arguments: list[str]) -> str:
    # Here, so that pages without this command need not import all of the package.
    from hedged_pubsub.__main__ import main
    from hedged_pubsub.cli.arguments import parse

    parse(arguments)
    if hidden.PARSED_ONLY.keys() & arguments:
        return ""
    printed, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(errors),
        mock.patch.dict(os.environ),  # a command does with its environment what it likes
    ):
        code = main([*arguments, *hidden.SHORTER.get(arguments[0], ())])
    if code:
        raise PageError(f"exit code {code}: {errors.getvalue()}")
    return printed.getvalue()


def _check_requirement(argument: str) -> None:
    """Check that this project, or what it is tested with, has that name and those extras."""
    requirement = Requirement(re.sub(r"^\.", "hedged-pubsub", argument))
    known = metadata.metadata(requirement.name).get_all("Provides-Extra") or ()
    if missing := requirement.extras - set(known):
        raise PageError(f"no such extras: {missing}")


def _loosely(output: str) -> str:
    """Return a pattern for an output whose numbers, rules' lengths and line breaks may differ."""
    numbers = (re.sub(r"\d(?:[\d,]|\\\.)*", r"[\\d.,]+", re.escape(w)) for w in output.split())
    return r"\s+".join(re.sub(r"([━─])+", r"\1+", word) for word in numbers)


if __name__ == "__main__":
    Page(Path(sys.argv[1])).run()
