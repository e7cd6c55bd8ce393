"""SQL is in `statements.sql` files: every statement there is named once, and used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lockstead
from lockstead.stores.statements import load

STORES = Path(lockstead.__file__).parent / "stores"
FILES = sorted(STORES.rglob("statements.sql"))


def package(file: Path) -> str:
    return ".".join(("lockstead", "stores", *file.parent.relative_to(STORES).parts))


@pytest.mark.parametrize("file", FILES, ids=package)
def test_every_statement_has_a_name_of_its_own_and_a_use(file: Path) -> None:
    names = re.findall(r"^-- name: (\S+)$", file.read_text("utf-8"), re.MULTILINE)
    statements = load(package(file))
    assert list(statements) == names, "each once"
    code = "".join(module.read_text("utf-8") for module in file.parent.glob("*.py"))
    assert [name for name in names if f'"{name}"' not in code] == [], "each is used"


@pytest.mark.parametrize("file", FILES, ids=package)
def test_a_loaded_statement_is_one_line_without_comments(file: Path) -> None:
    for name, text in load(package(file)).items():
        assert text, name
        assert "\n" not in text, name
        assert "--" not in text, f"{name}: a comment has a line of its own"
        assert ";" not in text, f"{name}: one statement a name"
