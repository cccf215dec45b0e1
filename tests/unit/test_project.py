"""What holds for the project as a whole: its modules, what they import, its dependencies."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import itertools
import pickle
import re
import sys
import textwrap
from pathlib import Path

import pytest

import hedged_pubsub
import hedged_pubsub.retry
from hedged_pubsub._core import settings

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "hedged_pubsub"
NAME = "hedged_pubsub"

# What each part of the package may import of the others: one direction, no circles.
MAY_IMPORT = {
    "": {"_core", "_sigterm", "_sync", "_version", "aio"},  # the package itself
    "_version": set(),
    "_core": set(),
    "_http2": set(),
    "retry": set(),
    "_google": {"_core", "_http2", "_version", "retry"},
    "_sync": {"_core", "_google", "_http2"},
    "aio": {"_core", "_google"},
    "_sigterm": {"_sync", "aio"},
    "testing": {"_core"},
    "cli": {"_core", "_google", "_version", "testing"},
    "__main__": {"cli"},
}
# Private parts of Google's packages and of gRPC, which only _google touches.
PRIVATE = re.compile(r"(google|grpc|proto)(\.\w+)*\._(?!base\b)\w+")
# Attributes of the standard library's own, which change with Python's releases only.
STANDARD = {"_asdict", "_replace", "_exit", "_is_owned"}
STANDARD |= {"_state", "_result", "_exception", "_done_callbacks"}  # of a future


def _imports(name: str, path: Path) -> set[str]:
    """The full dotted names that a module imports, wherever in it; ``from x import y`` is x.y."""
    names: set[str] = set()
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
IMPORTS = {name: _imports(name, path) for name, path in MODULES.items()}


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_imports_go_in_one_direction(part: str) -> None:
    """Each part imports only parts below it; nothing imports the command or the test server."""
    used = {
        imported.split(".")[1]
        for name, imports in IMPORTS.items()
        if f"{name}.".split(".")[1] == part
        for imported in imports
        if imported.startswith(f"{NAME}.")
    }
    if part == "cli":  # it uses the library as its users do
        used -= set(hedged_pubsub.__all__)

    assert used <= MAY_IMPORT[part] | {part}


def test_what_parts_import_from_elsewhere() -> None:
    """Every part has its direction; the core needs the standard library alone.

    What Google and gRPC may change without notice is touched in one place; and every module says
    what it is for.
    """
    assert all(map(ast.get_docstring, TREES.values()))
    assert {f"{name}.".split(".")[1] for name in MODULES} == set(MAY_IMPORT)
    for name, imports in IMPORTS.items():
        if name.startswith(f"{NAME}._core"):
            assert {one.split(".")[0] for one in imports} <= {NAME, *sys.stdlib_module_names}
        if name.startswith(f"{NAME}._http2"):
            roots = {one.split(".")[0] for one in imports}
            assert roots <= {NAME, "hpack", *sys.stdlib_module_names}
            assert not {"socket", "ssl", "threading", "time", "asyncio", "logging"} & imports
        if not name.startswith(f"{NAME}._google"):
            assert not list(filter(PRIVATE.match, imports)), name


def _private(tree: ast.AST, *, of_self: bool) -> set[str]:
    """The private attributes that some code uses of ``self``, or of other objects."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match("_[a-z]", node.attr)
        and (ast.unparse(node.value) in {"self", "cls"}) is of_self
    }


@functools.cache
def _inherited(owner: type) -> set[str]:
    """The private attributes that a class has from those of Google and gRPC among its bases."""
    names: set[str] = set()
    for base in owner.__mro__:
        if base.__module__.split(".")[0] in {"google", "grpc", "proto"}:
            source = ast.parse(textwrap.dedent(inspect.getsource(base)))
            names |= _private(source, of_self=True) | set(vars(base))
    return names


def test_only_one_part_touches_private_attributes_of_others() -> None:
    """Neither those of objects of Google's and gRPC's, nor those that classes inherit."""
    classes = {
        getattr(importlib.import_module(name), node.name): (name, node)
        for name, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    touched: set[tuple[str, str]] = set()
    for owner, derived in itertools.product(classes, classes):
        if owner in derived.__mro__:  # or it is a mixin that uses what comes after it
            name, node = classes[owner]
            names = _private(node, of_self=True) & _inherited(derived)
            touched |= {(name, attribute) for attribute in names}
    assert (f"{NAME}._google.unhedged", "_is_stopped") in touched
    assert not {one for one in touched if not one[0].startswith(f"{NAME}._google")}

    others = [tree for name, tree in TREES.items() if not name.startswith(f"{NAME}._google")]
    ours = set().union(*(_private(tree, of_self=True) for tree in others)) | {
        node.name for tree in others for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    assert set().union(*(_private(tree, of_self=False) for tree in others)) <= ours | STANDARD


def test_public_classes_are_pickled_by_their_public_names() -> None:
    """They may move within the package, and what was pickled before can still be read."""
    classes = [getattr(hedged_pubsub, name) for name in hedged_pubsub.__all__ if name[0] != "_"]
    classes += [getattr(hedged_pubsub.retry, name) for name in hedged_pubsub.retry.__all__]

    assert {public.__module__ for public in classes} == {NAME, f"{NAME}.retry"}
    assert b"_core" not in pickle.dumps(settings.HedgingSettings())


def test_lowest_constraints_are_the_floors() -> None:
    """``nox -s lowest`` runs on the very releases that the distribution promises."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = project.partition("\ndependencies = [")[2].partition("[project.scripts]")[0]
    floors = re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"', declared)
    constraints = (ROOT / "tests" / "lowest-constraints.txt").read_text(encoding="utf-8")

    assert sorted(re.findall(r"^([\w-]+)==(\S+)$", constraints, re.MULTILINE)) == sorted(floors)
