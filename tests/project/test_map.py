"""The map of the tree in CONTRIBUTING.md is the tree."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.harness.tree import ROOT
from tests.kit.test_contract import PUBLIC

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Where things live")[2].partition("\n## ")[0]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = {".c", ".lua", ".md", ".py", ".sql", ".svg", ".txt"}
DEPTH = {"tests": 3}
"""How deep the map goes; of what is not named here, to the ground."""


def mapped() -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


def folders(path: Path) -> list[Path]:
    """List a folder and those in it that the map has: not those of programs, nor what only a cache is in."""
    inner = [each for each in sorted(path.iterdir()) if each.is_dir() and each.name not in {"programs", "__pycache__"}]
    below = [folder for each in inner for folder in folders(each)]
    has_sources = any(each.suffix in SOURCES for each in path.iterdir())
    return [path, *below] if below or has_sources else []


def tree() -> set[str]:
    modules = {f"src/lockstead/{path.name}" for path in (ROOT / "src/lockstead").glob("*.py")}
    paths = [folder for room in ("src/lockstead", "tests") for folder in folders(ROOT / room)]
    names = {path.relative_to(ROOT) for path in paths} - {Path("src/lockstead"), Path("tests")}
    return modules | {f"{name}/" for name in names if len(name.parts) <= DEPTH.get(name.parts[0], 99)}


def test_the_map_lists_the_tree_completely() -> None:
    rooms = [path for path in mapped() if path.startswith(("src/lockstead/", "tests/"))]
    assert sorted(rooms) == sorted(tree())


def test_every_path_in_the_map_exists_and_every_top_folder_is_in_it() -> None:
    for path in mapped():
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path
    made = (ROOT / ".gitignore").read_text("utf-8").split()
    tops = {f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert tops - {*made} - {"src/", "tests/"} <= {*mapped()}


def test_the_public_modules_are_there_and_examples_use_no_other() -> None:
    named = re.findall(r"`(lockstead[\w.]*)`", PAGE.partition("**Public modules**")[2])
    assert set(named) >= PUBLIC
    for name in named:
        import_module(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|examples)/[\w./-]+?)/?(?:::\w+)?`", page.read_text("utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
