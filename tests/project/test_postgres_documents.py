"""What the documents show of PostgreSQL runs as it stands, but for the server's address."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstead.stores.postgres.table.schema import migration_sql
from tests.project.test_documents import NEED_POSTGRES, code_of, run
from tests.servers.binaries import POSTGRES18, PostgresFlavour
from tests.servers.postgres import PostgresServer, query


@pytest.mark.parametrize("document", NEED_POSTGRES, ids=lambda document: document.name)
def test_a_page_or_example_runs_from_top_to_bottom(
    document: Path, tmp_path: Path, shared_postgres: Callable[[PostgresFlavour], PostgresServer]
) -> None:
    with shared_postgres(POSTGRES18).database() as url:
        query(url, migration_sql())
        place = url.partition("://")[2]
        program = tmp_path / "document.py"
        program.write_text(re.sub(r"(postgresql(\+\w+)?://)localhost", rf"\g<1>{place}", code_of(document)), "utf-8")
        run(program, tmp_path, LOCKSTEAD_URL=url)


def test_there_are_documents_to_test() -> None:
    pages, examples = {"postgres.md", "transactions.md"}, {"fence_postgres.py", "xact_lock.py"}
    assert {document.name for document in NEED_POSTGRES} >= pages | examples
