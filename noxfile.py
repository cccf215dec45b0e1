"""What this project runs on itself: tests, coverage, lint, types, docs and examples.

Bare ``nox`` runs the tests: ``unit`` on each supported Python that is installed, ``system``, and
``system_emulated`` where Google's emulator is installed. Arguments after ``--`` go to pytest.
"""

from pathlib import Path

import nox

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
SOURCES = ("src", "tests", "benchmarks", "examples", "docs", "noxfile.py")
# The distribution with all that its tests reach: the command needs the extras.
DISTRIBUTION = ".[cli,plot]"

nox.needs_version = ">=2025.2.9"
# What runs again, after ``unit`` and ``system`` have run everything.
QUICK_TESTS = ("tests/unit", "tests/system", "-m", "not slow")

nox.options.sessions = ["unit", "system", "system_emulated"]
nox.options.reuse_venv = "yes"
# A supported Python that is not on the machine is skipped, on a CI machine too.
nox.options.error_on_missing_interpreters = False


def install(session: nox.Session, group: str, *arguments: str) -> None:
    """Install a dependency group of pyproject.toml, and whatever else is named, in one go.

    Args:
        session: The running session.
        group: The name of the group.
        *arguments: Further arguments to ``pip install``.
    """
    session.install("-q", *nox.project.dependency_groups(PROJECT, group), *arguments)


@nox.session(python=PYTHONS)
def unit(session: nox.Session) -> None:
    """Run the tests that need no server and no clock."""
    install(session, "test", DISTRIBUTION)
    session.run("pytest", "tests/unit", *session.posargs)


@nox.session
def system(session: nox.Session) -> None:
    """Run the tests over real gRPC on loopback, against the project's own test server."""
    install(session, "test", DISTRIBUTION)
    session.run("pytest", "tests/system", *session.posargs)


@nox.session
def system_emulated(session: nox.Session) -> None:
    """Run the tests against Google's emulator; they are skipped where it is not installed.

    Those in ``tests/contract`` also run against the project's own server.
    """
    install(session, "test", DISTRIBUTION)
    session.run("pytest", "tests/system_emulated", "tests/contract", *session.posargs)


@nox.session(python=PYTHONS[0])
def lowest(session: nox.Session) -> None:
    """Run the unit and system tests, but the slow ones, on the oldest supported releases."""
    install(session, "test", DISTRIBUTION, "-c", "tests/lowest-constraints.txt")
    session.run("pytest", *QUICK_TESTS, *session.posargs)


@nox.session
def cover(session: nox.Session) -> None:
    """Measure branch coverage over all but the slow tests; fail below the floor."""
    install(session, "cover", "-e", DISTRIBUTION)
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", *QUICK_TESTS, *session.posargs)
    session.run("coverage", "combine", "-q")
    session.run("coverage", "report")


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
def samples(session: nox.Session) -> None:
    """Run every example against the test server."""
    install(session, "test", DISTRIBUTION)
    for example in sorted(Path("examples").glob("*.py")):
        if example.name == "own_tests.py":
            session.run("pytest", str(example))
        else:
            session.run("python", str(example))


@nox.session
def official(session: nox.Session) -> None:
    """Run the official client's own tests, fetched from its source distribution, against ours."""
    install(session, "test", DISTRIBUTION, "flaky")  # which those tests import
    session.run("pytest", "tests/official", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure beside the official client, into docs/benchmarks.md; needs ten quiet minutes."""
    session.install("-q", DISTRIBUTION)
    session.run("hedged-pubsub", "bench", *(session.posargs or ("--report", "docs/benchmarks.md")))
