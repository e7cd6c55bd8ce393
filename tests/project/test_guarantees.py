"""The page of guarantees names checks that are there, and leaves none out; and quotes of it are true."""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from dataclasses import fields
from pathlib import Path

from lockstead.testing import Monitor, QuorumMonitor
from lockstead.testing.torture import arena as arena_module
from lockstead.testing.torture.checkers import CHECKERS, Promises
from tests.harness.tree import ROOT
from tests.model import line_mutants, redlock_mutants
from tests.simulation import mutants, quorum_mutants, test_election_histories
from tests.torture import arenas
from tests.torture.arenas import ARENAS

PAGE = (ROOT / "docs/guarantees.md").read_text("utf-8")


def test_the_tests_behind_guarantees_are_there() -> None:
    """`redis/test_it` is in a directory called so, or in test_redis.py."""
    named = re.findall(r"`(\w+)/(test_\w+)`", PAGE)
    assert len(named) > 100
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src/lockstead/testing").rglob("*.py")]
    there = {(place, name) for file in files for name in names_in(file) for place in places(file)}
    assert sorted({*named} - there) == []


def test_the_table_lists_every_prefix_with_existing_files() -> None:
    """A file named without a folder is in a folder of its row."""
    table = PAGE.partition("### Where to find a check")[2].partition("\n## ")[0]
    rows = [
        tuple(re.findall(r"`([^`]+)`", cell) for cell in row)
        for row in re.findall(r"^\| (`.+) \| (.+) \|$", table, re.MULTILINE)
    ]
    listed = {prefix.removesuffix("/") for prefixes, _ in rows for prefix in prefixes if prefix.endswith("/")}
    assert listed == {prefix for prefix, _ in re.findall(r"`(\w+)/(test_\w+)`", PAGE)}
    for _, paths in rows:
        folders = [ROOT / path for path in paths if "/" in path]
        assert [folder for folder in folders if not folder.exists()] == []
        files = [path for path in paths if "/" not in path]
        assert [file for file in files if not any([*folder.rglob(file)] for folder in folders)] == []


def names_in(file: Path) -> list[str]:
    return re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)


def places(file: Path) -> list[str]:
    return [*file.relative_to(ROOT).parent.parts, file.stem.removeprefix("test_")]


def test_every_checker_and_every_arena_stands_for_a_guarantee() -> None:
    assert {*re.findall(r"`checkers\.(\w+)`", PAGE)} == {checker.__name__ for checker in CHECKERS}
    (row,) = re.findall(r"^\| tortured in the arena \|(.*)", PAGE, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", row)} == {*ARENAS}


def test_every_excuse_on_the_page_is_in_the_code_of_its_arena() -> None:
    excuses = re.findall(r"Arena `(\w+)`: (.*?)[.;]$", PAGE, re.MULTILINE | re.DOTALL)
    assert {arena for arena, _ in excuses} == {*ARENAS} - {"memory"}
    for arena, excuse in excuses:
        code = inspect.getsource(ARENAS[arena])
        for promise in re.findall(r"`Promises\((\w+)=", excuse):
            assert promise in {field.name for field in fields(Promises)}
            assert f"{promise}=" in code, f"{arena}: {promise}"
        for kind in re.findall(r"`(\w+ \w+)`", excuse):
            assert f'"{kind}"' in code, f"{arena}: {kind}"


def test_the_mutants_and_invariants_behind_guarantees_are_there() -> None:
    modules = (mutants, quorum_mutants, test_election_histories)
    for name in re.findall(r"`mutants\.(\w+)`", PAGE):
        assert any(hasattr(module, name) for module in modules), name
    models = len(line_mutants.MUTANTS) + len(redlock_mutants.MUTANTS)
    simulated, of_redlock = len(mutants.MUTANTS), len(quorum_mutants.MUTANTS)
    assert f"{simulated} by the simulation and {of_redlock} by that of Redlock, {models} by the models" in PAGE
    invariants = {"Simulation": f"{Monitor.__doc__} {QuorumMonitor.__doc__}", "Model": docs("model.md")}
    for kind, text in invariants.items():
        quotes = re.findall(r'"([^"]+)"', "".join(re.findall(rf"^- {kind}: .*\n(?:  .*\n)*", PAGE, re.MULTILINE)))
        assert len(quotes) > 5
        for quote in quotes:
            assert plain(quote) in plain(text), quote


def test_what_arenas_quote_is_written_in_the_docs() -> None:
    quotes = [quote for module in (arenas, arena_module) for quote in quoted(inspect.getsource(module))]
    assert len(quotes) > 10
    everything = plain(docs("**/*.md"))
    assert [quote for quote in quotes if plain(quote) not in everything] == []


def quoted(code: str) -> list[str]:
    """Find sentences in quotation marks, in comments and docstrings."""
    words = [
        token.string.strip("# " if token.type == tokenize.COMMENT else '"')
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT or token.string.startswith('"""')
    ]
    return re.findall(r'"([^"]+ [^"]+ [^"]+ [^"]+?)\.?"', " ".join(words))


def docs(pattern: str) -> str:
    return "\n".join(page.read_text("utf-8") for page in sorted((ROOT / "docs").glob(pattern)))


def plain(text: str) -> str:
    """Leave out how it is broken into lines, and emphasised."""
    return " ".join(re.sub(r"[`*]", "", text).split()).lower()
