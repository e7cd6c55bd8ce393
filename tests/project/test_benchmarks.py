"""What benchmarks found is kept, reported, drawn and published, whatever of it is missing."""

from __future__ import annotations

import ast
import json
import re
import sys
from math import nan
from pathlib import Path
from typing import Any

import pytest

from bench import _run
from bench._measure import Spread, Target, report
from bench._report import ROOT, Result, describe_machine, load, publish, renewed, save, write_report
from bench._run import PROGRAMS, Schedule, run

FILES = [path for path in sorted((ROOT / "bench").glob("*.py")) if not path.name.startswith("_")]
PAGE = ROOT / "docs" / "performance.md"
GAP = Spread(1.5, 1.0, 2.0, 3.0)._asdict()
NONE: dict[str, None] = dict.fromkeys(GAP)


def crowd(kind: str, waiters: int, case: str) -> dict[str, Any]:
    return {"kind": kind, "waiters": waiters, "section_ms": 5.0, "case": case, "gap_ms": GAP, "commands": 2.0 * waiters}


def pair(runtime: str, case: str, cost: float) -> dict[str, Any]:
    return {"runtime": runtime, "case": case, "nodes": "1 node", "x floor": cost, "x bare advisory": 100 * cost}


PAIRS = [
    pair("threads", "floor", 1.0),
    pair("threads", "lockstead redis://", 1.7),
    pair("threads", "redis-py Lock", 4.3),
    pair("uvloop", "lockstead redis://", 2.0),
]
ROWS: dict[str, list[dict[str, Any]]] = {
    "pair": PAIRS,
    "redis_pair": [*PAIRS, pair("threads", "lockstead redlock://", 7.0) | {"nodes": "5 nodes"}],
    "postgres_pair": PAIRS,
    "redis_fanout": [
        {"loop": "asyncio", "case": "lockstead redis://", "pairs/s": 45_000.0},
        {"loop": "asyncio", "case": "redis-py Lock", "pairs/s": 2_900.0},
    ],
    "redis_handover": [
        crowd(kind, waiters, case)
        for kind in ("threads", "processes")
        for waiters in (2, 10)
        for case in ("python-redis-lock", "lockstead redis://")
    ]
    + [crowd("tasks", 2, "redis-py Lock") | {"gap_ms": NONE, "commands": None}],
    "redis_held": [
        {"case": "lockstead threads", "locks": 1000, "CPU ms / 1,000 renewals": 3.0},
        {"case": "python-redis-lock", "locks": 1000, "CPU ms / 1,000 renewals": 1500.0},
    ],
    "line": [{"store": "Redis", "step": "hand over", "waiting": size, "µs": GAP} for size in (1, 5000)],
    "names": [
        {"store": store, "names": size, "pair µs": GAP} for store in ("Redis", "redis-py Lock") for size in (10, 10**6)
    ],
    "recovery": [{"killed": "holder", "case": "redis-py Lock", "idle s": NONE, "x ttl": None}]
    + [
        {"killed": role, "case": case, "idle s": GAP, "x ttl": 0.75}
        for role in ("holder", "next in line")
        for case in ("lockstead redis://", "filelock")
    ],
}


def found(program: str, *targets: Target, broken: dict[str, str] | None = None) -> Result:
    said = [{**target._asdict(), "met": target.met} for target in targets]
    document = {"question": f"{program} on redis7", "machine": "", "rows": ROWS[program], "targets": said}
    return Result(program, 1.0, True, None, [document | {"broken": broken or {}}])


RESULTS = [
    found(
        "redis_pair", Target("threads: x floor", 2.5, 2.0), broken={"threads, tooz": "broke", "uvloop, tooz": "broke"}
    ),
    found("redis_handover", Target("Jain", 0.99, 0.95, at_least=True)),
    Result("rates", 1.0, True, "Traceback\nRuntimeError: two held at once", []),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    describe_machine(tmp_path, is_quick=True)
    for result in RESULTS:
        save(result, tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_benchmark_asks_a_question_has_a_main_and_is_run(path: Path) -> None:
    program = ast.parse(path.read_text("utf-8"))
    assert (ast.get_docstring(program) or "").partition("\n")[0].endswith("?")
    assert any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in program.body)
    assert path.stem in PROGRAMS


def test_a_benchmark_target_is_met_missed_or_not_measured() -> None:
    assert Target("x floor", 2.0, 2.0).verdict == "met"
    assert Target("x floor", 2.1, 2.0).verdict == "MISSED"
    assert Target("Jain", 0.9, 0.95, at_least=True).verdict == "MISSED"
    assert Target("Jain", nan, 0.95, at_least=True).verdict == "not measured"
    assert not Target("Jain", nan, 0.95).met


def test_a_program_prints_what_can_be_read_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"case": "ours", "gap": Spread(1.0, 0.5, 2.0, nan)}]
    report("How long?", rows, as_json=True, targets=[Target("gap", nan, 1.0)], broken={"tooz": "gone"})
    (document,) = _run.documents(capsys.readouterr().out)
    save(Result("pair", 1.0, False, None, [document]), tmp_path)
    (result,) = load(tmp_path, PROGRAMS)
    assert result.targets[0].verdict == "not measured"
    assert result.broken == {"tooz": "gone"}
    assert result.rows == [{"case": "ours", "gap": {"median": 1.0, "p10": 0.5, "p90": 2.0, "p99": None}}]


def attempt(program: str) -> Result:
    return run("pair", [sys.executable, "-c", program], Schedule({"pair": 0.1}), is_quick=True)


def test_every_json_report_that_a_benchmark_prints_is_kept() -> None:
    result = attempt("print('{\"rows\": []}' * 2)")
    assert result.failure is None
    assert result.reports == [{"rows": []}] * 2


def test_a_program_that_fails_leaves_its_last_lines() -> None:
    result = attempt("print('{\"rows\": []}'); raise RuntimeError('two held at once')")
    assert result.failure is not None
    assert result.failure.endswith("RuntimeError: two held at once")
    assert attempt("pass").failure == ""


def test_a_program_that_is_stuck_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "EXTRA_TIME", 0.0)
    result = attempt("import signal; signal.pause()")
    assert result.failure is not None
    assert "did not end" in result.failure


def test_the_report_says_what_was_reached_and_what_is_missing(folder: Path) -> None:
    text = write_report(load(folder, PROGRAMS), folder).read_text("utf-8")
    assert "| **MISSED** | `redis_pair` | threads: x floor | 2.5 | ≤ 2 |" in text
    assert "| met | `redis_handover` | Jain | 0.99 | ≥ 0.95 |" in text
    assert "- `redis_pair`: threads, tooz; uvloop, tooz: broke" in text
    assert "redis_pair on redis7 (`python -m bench.redis_pair --quick`)." in text
    assert "`rates` failed:" in text
    assert "RuntimeError: two held at once" in text
    assert "| threads | 10 | 5 | **lockstead redis://** | 1.5 (1-2) | 20 |" in text
    assert text.index("MISSED") < text.index("two held at once") < text.index("## What does an uncontended")


def test_a_page_is_renewed_between_its_markers(folder: Path) -> None:
    page = "a\n<!-- made: rows redis_handover kind=threads waiters=2 -->\nbygone\n<!-- end -->\nz\n"
    once = renewed(page, RESULTS, folder)
    assert renewed(once, RESULTS, folder) == once
    assert "bygone" not in once
    assert once.startswith("a\n")
    assert once.endswith("\nz\n")
    assert once.count("lockstead redis://") == 1
    assert "processes" not in once


def test_the_performance_page_names_programs_that_there_are(folder: Path, tmp_path: Path) -> None:
    page = PAGE.read_text("utf-8")
    assert set(re.findall(r"<!-- made: rows (\w+)", page)) <= set(PROGRAMS)
    assert page.count("<!-- made: ") == page.count("<!-- end -->")
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / PAGE.name).write_text(page, "utf-8")
    publish(RESULTS, folder, docs)
    text = (docs / PAGE.name).read_text("utf-8")
    assert "- `redis_pair`: threads: x floor: 2.5, target ≤ 2." in text
    assert "Not measured." in text
    assert (docs / "performance" / "report.md").exists()


def test_there_are_figures_for_every_plot() -> None:
    plots = pytest.importorskip("bench._plots", exc_type=ModuleNotFoundError)
    for program, plot in plots.PLOTS.values():
        assert plot(ROWS[program]).axes


def test_a_plot_is_left_out_whose_rows_are_not_measured(tmp_path: Path) -> None:
    plots = pytest.importorskip("bench._plots", exc_type=ModuleNotFoundError)
    short = Result("redis_handover", 1.0, True, None, [{"rows": [crowd("threads", 2, "ours") | {"section_ms": 0.0}]}])
    assert plots.draw([short], tmp_path) == {}
    assert not list(tmp_path.iterdir())
    assert plots.PLOTS["redis_pair-redlock"][1](ROWS["redis_pair"][:-1]) is None


def test_a_plot_that_cannot_be_drawn_is_reported_and_the_others_are_drawn(tmp_path: Path) -> None:
    plots = pytest.importorskip("bench._plots", exc_type=ModuleNotFoundError)
    (tmp_path / "recovery.svg").touch()
    renamed = Result("line", 1.0, True, None, [{"rows": [{"place": "Redis"}]}])
    assert set(plots.draw([renamed, found("names"), RESULTS[-1]], tmp_path)) == {"line"}
    assert {path.name for path in tmp_path.iterdir()} == {"names.svg", "names.png"}


def test_results_are_plain_json(folder: Path) -> None:
    for path in folder.glob("*.json"):
        json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)
