"""What this project runs on itself: tests, coverage, lint, types and docs.

Bare ``nox`` runs the tests on the Python that it runs on itself. Arguments after ``--`` go to
pytest: ``nox -- tests/system -k signal``.
"""

import os
import shutil

import nox
from nox.command import CommandFailed

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
SOURCES = ("src", "tests", "benchmarks", "examples", "docs", "noxfile.py")
# The distribution with all that its tests reach: the command needs the extras.
DISTRIBUTION = ".[cli,http2,plot]"
# So many tests run at a time. Many of them wait rather than compute.
PROCESSES = (os.cpu_count() or 1) + 1

nox.needs_version = ">=2025.2.9"
# CI measures coverage in the run of the tests that the README names, rather than in another one.
nox.options.sessions = ["cover" if os.environ.get("CI") else "tests"]
# uv installs an environment within seconds; it is to trust the certificates that pip trusts.
nox.options.default_venv_backend = "uv|virtualenv"
os.environ.setdefault("UV_SYSTEM_CERTS", "1")
# The tests start many interpreters, each of which would compile Google's packages anew: 2 seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
nox.options.reuse_venv = "yes"
# A supported Python that is not on the machine is skipped, on a CI machine too.
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False


def install(session: nox.Session, group: str, *arguments: str) -> None:
    """Install a dependency group of pyproject.toml, and whatever else is named, in one go.

    Args:
        session: The running session.
        group: The name of the group.
        *arguments: Further arguments to ``pip install``.
    """
    requirements = nox.project.dependency_groups(PROJECT, group)
    # Python compiles what is imported, and most of what is installed is not.
    session.install("-q", "--no-compile", *requirements, *arguments)


def run_tests(session: nox.Session, *runs: tuple[tuple[str, ...], str]) -> None:
    """Run tests in several processes, and then in one those that measure (marked ``serial``).

    With arguments of the user's, all run in one process: for ``-x``, ``--pdb`` or a few tests.

    Args:
        session: The running session.
        *runs: Commands, each with a marker expression for the tests that it runs.
    """
    if session.posargs:
        session.run(*runs[0][0], *session.posargs)
        return
    failures = 0
    for group, processes in (("not serial", PROCESSES), ("serial", 0)):
        for command, expression in runs:
            marked = f"({expression}) and {group}" if expression else group
            try:
                session.run(*command, "-m", marked, "-n", str(processes), "--dist", "worksteal")
            except CommandFailed:  # the other runs name their failures as well
                failures += 1
    if failures:
        session.error("tests failed")


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests; those against Google's emulator are skipped where it is not installed."""
    install(session, "test", DISTRIBUTION)
    run_tests(session, (("pytest",), ""))


@nox.session
def cover(session: nox.Session) -> None:
    """Run all tests, and measure branch coverage of all but the slow ones; it has a floor."""
    install(session, "cover", "-e", DISTRIBUTION)
    session.run("coverage", "erase")
    measured = ("coverage", "run", "-m", "pytest")
    try:
        run_tests(session, (measured, "not slow"), (("pytest",), "slow"))
    finally:
        session.run("coverage", "combine", "-q")
        session.run("coverage", "report")


@nox.session(python=PYTHONS)
def unit(session: nox.Session) -> None:
    """Run the tests that need no server and no clock, in one process."""
    install(session, "test", DISTRIBUTION)
    session.run("pytest", "tests/unit", *session.posargs)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the unit and system tests, but the slow ones, on the oldest supported releases."""
    install(session, "test", DISTRIBUTION, "-c", "tests/lowest-constraints.txt")
    run_tests(session, (("pytest", "tests/unit", "tests/system"), "not slow"))


@nox.session
def official(session: nox.Session) -> None:
    """Run the official client's own tests, fetched from its source distribution, against ours."""
    # pip downloads them, and they import flaky.
    install(session, "test", DISTRIBUTION, "pip", "flaky")
    session.run("pytest", "tests/official", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Change the core in small ways, each of which a unit test has to notice: tests/mutants.md.

    Takes fifteen minutes; with arguments less: ``nox -s mutants -- '*.connections.*'``.
    """
    install(session, "mutants", DISTRIBUTION)
    shutil.rmtree("mutants", ignore_errors=True)  # what is kept there knows nothing of new tests
    session.run("mutmut", "run", *session.posargs)
    session.run("python", "-m", "tests.mutants")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, and that the formatter has nothing to change."""
    install(session, "lint")
    session.run("ruff", "check", *SOURCES)
    session.run("ruff", "format", "--check", *SOURCES)


@nox.session(name="format")
def format_(session: nox.Session) -> None:
    """Format the sources and make the style fixes that are safe."""
    install(session, "lint")
    session.run("ruff", "check", "--fix", *SOURCES)
    session.run("ruff", "format", *SOURCES)


@nox.session
def mypy(session: nox.Session) -> None:
    """Check the types of everything, strictly."""
    install(session, "mypy", DISTRIBUTION)
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning or a dangling reference is an error."""
    install(session, "docs", DISTRIBUTION)
    session.run("sphinx-build", "-W", "--keep-going", "-n", "-E", "-q", "docs", "docs/_build/html")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure beside the official client, into docs/benchmarks.md; needs ten quiet minutes."""
    session.install("-q", DISTRIBUTION)
    session.run("hedged-pubsub", "bench", *(session.posargs or ("--report", "docs/benchmarks.md")))
