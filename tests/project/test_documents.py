"""What the documents show runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.tree import ROOT
from tests.servers.binaries import VALKEY9, Flavour
from tests.servers.redis import RedisServer

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def code_of(document: Path) -> str:
    return document.read_text("utf-8") if document.suffix == ".py" else "\n\n".join(python_blocks(document))


NEED_POSTGRES = [document for document in PAGES + EXAMPLES if "postgresql://localhost" in code_of(document)]
"""Run where there is such a server: tests/project/test_postgres_documents.py."""


def without_postgres(documents: list[Path]) -> list[Path]:
    return [document for document in documents if code_of(document) and document not in NEED_POSTGRES]


@pytest.mark.parametrize("document", without_postgres(PAGES + EXAMPLES), ids=lambda document: document.name)
def test_a_page_or_example_runs_from_top_to_bottom(
    document: Path, tmp_path: Path, shared_servers: Callable[[Flavour], RedisServer]
) -> None:
    program = tmp_path / "document.py"
    code = code_of(document)
    if "redis://localhost:6379" in code:
        code = code.replace("redis://localhost:6379", f"redis://localhost:{shared_servers(VALKEY9).port}")
    program.write_text(code, "utf-8")
    run(program, tmp_path)


def test_there_are_pages_and_examples_to_test() -> None:
    assert len(EXAMPLES) >= 3
    assert any(python_blocks(page) for page in PAGES)


def run(program: Path, folder: Path, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")} | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("page", "right"), [("redis.md", r"^ACL SETUSER .*\n.*"), ("postgres.md", r"^GRANT .* TO app;")]
)
def test_the_least_rights_are_the_same_wherever_they_are_written(page: str, right: str) -> None:
    """Those of the store's page are tried on a server."""
    security = re.findall(right, (ROOT / "SECURITY.md").read_text("utf-8"), re.MULTILINE)
    assert security
    assert security == re.findall(right, (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
