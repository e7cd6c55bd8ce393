"""Where code may live: what an __init__.py holds, and which room may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lockstead

SRC = Path(lockstead.__file__).parent
MODULES = sorted(SRC.rglob("*.py"))
FACADES = {"asynchronous", "blocking"}
MAY_IMPORT = {
    "core": {"errors"},
    "primitives": {"core", "errors"},
    "runtimes": {"core", "errors"},
    "stores": {"core", "errors", "runtimes"},
    "asynchronous": {"core", "errors", "primitives", "runtimes", "stores"},
    "blocking": {"core", "errors", "primitives", "runtimes", "stores"},
}
"""The direction of data: façade, primitive, engine, store. What is not listed (the command, the kit) may import all."""


def room(module: str) -> str:
    return module.removeprefix("lockstead.").partition(".")[0]


def imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module} | {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_a_package_imports_only_packages_below_it(path: Path) -> None:
    own = path.relative_to(SRC).parts[0]
    if own not in MAY_IMPORT:
        return
    rooms = {room(name) for name in imports(path) if name.startswith("lockstead.")}
    assert rooms <= MAY_IMPORT[own] | {own}


@pytest.mark.parametrize("path", sorted(SRC.rglob("__init__.py")), ids=lambda path: str(path.parent.relative_to(SRC)))
def test_an_init_module_holds_only_imports(path: Path) -> None:
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.Assign):
            assert [ast.unparse(target) for target in statement.targets] in (["__all__"], ["__version__"])
        elif isinstance(statement, ast.Expr):
            assert isinstance(statement.value, ast.Constant), "a docstring is the only expression"
        else:
            assert isinstance(statement, ast.Import | ast.ImportFrom)


def test_no_module_is_hidden_by_an_underscore_or_named_for_nothing() -> None:
    """Packages say what is public: see CONTRIBUTING.md. An underscore would say it twice."""
    names = {path.stem for path in MODULES} - {"__init__", "__main__"}
    assert not [name for name in names if name.startswith("_") or name in {"utils", "helpers", "common", "misc"}]


def test_a_blocking_module_has_its_asynchronous_twin() -> None:
    rooms = [{path.name for path in (SRC / each).glob("*.py")} for each in sorted(FACADES)]
    assert rooms[0] == rooms[1]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_only_a_lease_changes_a_lease(path: Path) -> None:
    if path == SRC / "core" / "lease.py":
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            assert ast.unparse(node.value) != "lease", f"line {node.lineno}: {ast.unparse(node)} is assigned"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_only_the_core_and_its_kit_use_the_keeper(path: Path) -> None:
    if path.relative_to(SRC).parts[0] not in {"core", "testing"}:
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        assert not [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "keeper"]
