"""What the documents show of PostgreSQL runs as it stands, but for the server's address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_documents import NEED_POSTGRES, code_of, run


@pytest.mark.parametrize("document", NEED_POSTGRES, ids=lambda document: document.name)
def test_a_page_or_example_runs_from_top_to_bottom(document: Path, tmp_path: Path, postgres_url: str) -> None:
    place = postgres_url.partition("://")[2]
    program = tmp_path / "document.py"
    program.write_text(re.sub(r"(postgresql(\+\w+)?://)localhost", rf"\g<1>{place}", code_of(document)), "utf-8")
    run(program, tmp_path)


def test_there_are_documents_to_test() -> None:
    assert {document.name for document in NEED_POSTGRES} >= {"transactions.md", "xact_lock.py"}
