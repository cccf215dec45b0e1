"""What holds for the project as a whole: its modules, what they import, and what is documented."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import hedged_pubsub
import hedged_pubsub.retry
import hedged_pubsub.testing
from hedged_pubsub import settings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hedged_pubsub"
NAME = "hedged_pubsub"

# Modules that are arithmetic and decisions only: no gRPC, no Google client, no other part of ours.
PURE = (
    "_wire",
    "engine",
    "events",
    "futility",
    "hedge_delay",
    "hedge_log",
    "histogram",
    "settings",
    "stats",
    "token_bucket",
    "topic_state",
)
# Not imported by the library: users reach them by name, and ``__main__`` is the command.
OUTER = ("__main__", "cli", "testing")


def _modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package by its dotted name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _imports(name: str, path: Path) -> set[str]:
    """The full dotted names that a module imports, wherever in it; ``from x import y`` is x.y."""
    names: set[str] = set()
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([base] if base else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


MODULES = dict(_modules())


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name: str) -> None:
    """Each module imports, and says in its docstring what it is for."""
    assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("name", PURE)
def test_the_core_imports_only_the_standard_library(name: str) -> None:
    """The attempt engine and what it is made of need neither gRPC nor a Google client."""
    imported = _imports(f"{NAME}.{name}", PACKAGE / f"{name}.py")
    foreign = {
        module
        for module in imported
        if module.split(".")[0] not in sys.stdlib_module_names
        and not (module.startswith(f"{NAME}.") and module.split(".")[1] in PURE)
    }
    assert not foreign


@pytest.mark.parametrize("name", [name for name in MODULES if "." in name])
def test_the_library_does_not_depend_on_its_tools(name: str) -> None:
    """Only the command imports the command and, for its demo, the test server."""
    part = name.split(".")[1]
    allowed = {
        "__main__": {"__main__", "cli", "testing"},
        "cli": {"cli", "testing"},
        "testing": {"testing"},
    }.get(part, set())
    used = {
        module.split(".")[1]
        for module in _imports(name, MODULES[name])
        if module.startswith(f"{NAME}.")
    }
    assert used & set(OUTER) <= allowed


def test_the_package_itself_does_not_import_its_tools() -> None:
    """``import hedged_pubsub`` brings neither the test server nor the command."""
    used = {
        module.split(".")[1]
        for module in _imports(NAME, MODULES[NAME])
        if module.startswith(f"{NAME}.")
    }
    assert not used & set(OUTER)


@pytest.mark.parametrize(
    "module",
    [hedged_pubsub, hedged_pubsub.retry, hedged_pubsub.testing],
    ids=lambda module: module.__name__,
)
def test_public_names_are_sorted_documented_and_there(module: ModuleType) -> None:
    """``__all__`` is sorted, every name in it exists, and the API reference has the same."""
    public = list(module.__all__)
    api = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(
        rf"auto(?:class|data|exception|function):: {re.escape(module.__name__)}\.(\w+)(?:\(\))?$",
        api,
        re.MULTILINE,
    )

    assert public == sorted(public)
    assert all(hasattr(module, name) for name in public)
    # The version is a number in the documentation, not a class.
    assert sorted(documented) == [name for name in public if name != "__version__"]


@pytest.mark.parametrize("page", ["README.md", "docs/settings.md"])
def test_documented_settings_are_those_of_the_code(page: str) -> None:
    """The tables of settings name the defaults and bounds that are enforced."""
    text = (ROOT / page).read_text(encoding="utf-8")
    rows = {
        row[0]: [float(number) for number in re.findall(r"[\d.]+", f"{row[1]} {row[2]}")]
        for row in re.findall(r"^\| `(\w+)` \| (\d[^|]*) \| (\d[^|]*) \|", text, re.MULTILINE)
    }
    defaults = settings.HedgingSettings()

    assert rows == {
        "hedge_delay": [
            defaults.initial_hedge_delay,
            settings.MIN_HEDGE_DELAY,
            settings.MAX_HEDGE_DELAY,
        ],
        "max_tokens": [defaults.max_tokens, settings.MIN_TOKENS, settings.MAX_TOKENS],
        "refill_ratio": [
            defaults.refill_ratio,
            settings.MIN_REFILL_RATIO,
            settings.MAX_REFILL_RATIO,
        ],
    }


def test_lowest_constraints_are_the_floors() -> None:
    """``nox -s lowest`` runs on the very releases that the distribution promises."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = project.partition("\ndependencies = [")[2].partition("[project.scripts]")[0]
    floors = re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"', declared)
    constraints = (ROOT / "tests" / "lowest-constraints.txt").read_text(encoding="utf-8")

    assert sorted(re.findall(r"^([\w-]+)==(\S+)$", constraints, re.MULTILINE)) == sorted(floors)
