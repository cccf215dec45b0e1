"""Commands in the documentation: run where that is quick, else checked as far as it goes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import PurePath

from packaging.requirements import Requirement

from tests.system.docs.blocks import ROOT

# What is put after the options of a command that would take long: of two, the last one counts.
# A small bucket is filled sooner.
SHORTER = {
    "demo": ("--publishes", "200", "--rate", "400", "--stall", "0.5", "--max-tokens", "10"),
}
# Commands with one of these words are only parsed; what they do has its own tests.
PARSED_ONLY = {
    "bench": "takes minutes; tests/system/cli/test_bench.py runs a small one",
    "frozen-connection": "takes ten seconds, in which the official client waits in vain",
}

_TIMEOUT = 60.0


class WrongCommandError(Exception):
    """A command that does not work, or that does not do what the page shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A command line, and what the page says that it prints."""

    text: str
    output: str


def console_lines(code: str) -> list[Line]:
    """Read a ``console`` block: commands after ``$``, and below each what it prints."""
    lines: list[Line] = []
    for part in re.split(r"^\$ ", code.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        text, _, output = part.partition("\n")
        lines.append(Line(text=text, output=output))
    if not lines:
        raise WrongCommandError("a console block needs a command, after '$ '")
    return lines


def shell_lines(code: str) -> list[Line]:
    """Read a ``sh`` block: each line is a command."""
    return [Line(text=text, output="") for text in code.replace("\\\n", " ").splitlines()]


class Shell:
    """Runs the commands of one page in the current directory."""

    def __init__(self) -> None:
        self._servers: list[subprocess.Popen[str]] = []

    def run(self, line: Line) -> None:
        """Run a command line; commands can be joined by ``&&``.

        Raises:
            WrongCommandError: If it fails, is unknown, or prints something else.
        """
        lexer = shlex.shlex(line.text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in [*lexer, "&&"]:
            if word != "&&":
                command.append(word)
            elif command:
                self._run(command, line)
                command = []

    def _run(self, command: list[str], line: Line) -> None:
        settings = {}
        while command and re.match(r"\w+=", command[0]):
            name, _, value = command.pop(0).partition("=")
            settings[name] = value
        if not command:
            raise WrongCommandError("sets a variable for nothing; write 'export'")
        match [PurePath(command[0]).name, *command[1:]]:
            case ["export", *assignments]:
                for assignment in assignments:
                    name, _, os.environ[name] = assignment.partition("=")
            case ["pip", *arguments] | ["python" | "python3", "-m", "pip", *arguments]:
                check_pip(arguments)
            case ["python" | "python3", "-m", "venv", *arguments]:
                # Without pip: nothing is installed into it, and that is quick.
                self._call(["-m", "venv", "--without-pip", *arguments], settings, line)
            case ["hedged-pubsub", *arguments] | [
                "python" | "python3",
                "-m",
                "hedged_pubsub",
                *arguments,
            ]:
                self._ours(arguments, settings, line)
            case ["pytest", *arguments]:
                self._call(["-m", "pytest", *arguments], settings, line)
            case ["python" | "python3", program, *arguments]:
                # Named as seen from a clone, or written by a block above.
                example = ROOT / program
                path = str(example) if example.exists() else program
                self._call([path, *arguments], settings, line)
            case _:
                raise WrongCommandError("nobody knows how to check this command")

    def _ours(self, arguments: list[str], settings: dict[str, str], line: Line) -> None:
        # Here, so that pages without this command need not import all of the package.
        from hedged_pubsub.cli.arguments import parse
        from hedged_pubsub.cli.values import UsageError

        try:
            parse(arguments)
        except UsageError as error:
            raise WrongCommandError(str(error)) from error
        except SystemExit:  # --help and --version
            return
        name = arguments[0]
        if name == "serve":
            self._serve(arguments, settings, line)
        elif not PARSED_ONLY.keys() & arguments:
            shorter = SHORTER.get(name, ())
            self._call(["-m", "hedged_pubsub", *arguments, *shorter], settings, line)

    def _call(self, arguments: list[str], settings: dict[str, str], line: Line) -> None:
        done = subprocess.run(  # noqa: S603
            [sys.executable, *arguments],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise WrongCommandError(f"exit code {done.returncode}: {done.stdout}{done.stderr}")
        check_output(line, done.stdout)

    def _serve(self, arguments: list[str], settings: dict[str, str], line: Line) -> None:
        """Start the server, and do in this process what it tells its user to."""
        server = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "hedged_pubsub", *arguments, "--port", "0"],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._servers.append(server)
        assert server.stdout is not None
        told = server.stdout.readline()
        check_output(line, told)
        self.run(Line(text=told, output=""))

    def end(self) -> None:
        """End the servers that the page started, as Ctrl-C does.

        Raises:
            WrongCommandError: If one has failed.
        """
        for server in self._servers:
            server.send_signal(signal.SIGTERM)
            _, errors = server.communicate(timeout=_TIMEOUT)
            if server.returncode != 0:
                raise WrongCommandError(f"hedged-pubsub serve: {server.returncode}: {errors}")


def check_output(line: Line, output: str) -> None:
    """Check that a command prints what the page shows.

    Numbers, lengths of rules and line breaks may differ: measurements do, and so do terminals.

    Raises:
        WrongCommandError: If it prints something else.
    """
    words = [re.escape(word) for word in line.output.split()]
    loose = [re.sub(r"([━─]+)|\d(?:[\d,]|\\\.)*", _any_length, word) for word in words]
    if not re.search(r"\s+".join(loose), output):
        raise WrongCommandError(f"the page shows\n{line.output}\nbut it prints\n{output}")


def _any_length(found: re.Match[str]) -> str:
    return f"{found[1][0]}+" if found[1] else r"[\d.,]+"


def check_pip(arguments: list[str]) -> None:
    """Check that what is to be installed is this project, or what it tests itself with.

    Raises:
        WrongCommandError: If a distribution or an extra is not known to ``pyproject.toml``.
    """
    extras, known = _known_to_the_project()
    if arguments[:1] != ["install"]:
        raise WrongCommandError("nobody knows how to check this command")
    for word in arguments[1:]:
        if word.startswith("-"):
            continue
        # A clone is installed by its path.
        asked = Requirement(re.sub(r"^\.", "hedged-pubsub", word))
        if asked.name not in known:
            raise WrongCommandError(f"{asked.name} is not in pyproject.toml")
        if asked.name == "hedged-pubsub" and not asked.extras <= extras:
            raise WrongCommandError(f"no such extras: {asked.extras - extras}")


def _known_to_the_project() -> tuple[set[str], set[str]]:
    """The extras, and the distributions, that ``pyproject.toml`` names."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    optional = project.partition("\n[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = set(re.findall(r"^([\w-]+) = \[", optional, re.MULTILINE))
    # `"name>=1.0"`, `"name[extra]>=1.0"`, and the project's own name.
    return extras, {"hedged-pubsub", *re.findall(r'"([\w-]+)(?:\[[\w,]+\])?[<>=]=', project)}
