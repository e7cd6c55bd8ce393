"""Generate the blocking façade from the asyncio one.

    python tools/unasync.py           write the generated modules
    python tools/unasync.py --check   compare them with what is checked in

The asyncio façade awaits coroutines of the core and of itself. In its blocking twin, one of the core is driven to its
end (`await self._engine.find(name)` becomes `drive(self._engine.find(name))`), and a method of the façade is called
(`await self.info(name)` becomes `self.info(name)`): see `Module.calls`. A line that ends with ``# asyncio only`` is
left out. The rest is names, types and, where the two differ for a reader, sentences: the tables below.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/lockstead/asynchronous"
TARGET = ROOT / "src/lockstead/blocking"
COMMAND = "python tools/unasync.py"
ASYNCIO_ONLY = "# asyncio only"
DRIVE = "from lockstead.core.runtime import drive"

NAMES = {
    "AsyncGenerator": "Generator",
    "AsyncIterator": "Iterator",
    "AsyncRuntime": "ThreadRuntime",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aio": "threads",
    "asynchronous": "blocking",
    "asyncio": "threading",
    "check_async_callback": "check_callback",
    "check_async_work": "check_work",
    "check_coroutine": "check_plain",
    "get_async_distributed_lock": "get_distributed_lock",
}
"""Names of the asyncio façade and what they are called in the blocking one; any other `AsyncX` is `X`."""

TYPES = [
    (r"\bAwaitable\[([^\[\]]+)\]", r"\1"),
    (r"\bCoroutine\[Any, Any, ([^\[\]]+)\]", r"\1"),
    (r"\bAsyncGenerator\[([^\[\]]+), None\]", r"Generator[\1, None, None]"),
]

TEXT = [("``async with ", "``with "), ("`async with`", "`with`"), ("an AsyncRuntime", "a ThreadRuntime")]
"""In docstrings and messages."""


@dataclass(frozen=True)
class Module:
    """One module to generate."""

    name: str
    calls: frozenset[str] = frozenset()
    """What is awaited, but called in the blocking façade, besides the methods that the module itself defines."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Texts that differ, applied first. Each must occur exactly once, so that none outlives its reason."""


MODULES = [
    Module("__init__.py", replacements=(("The client for asyncio", "The client for threads"),)),
    Module(
        "client.py",
        frozenset({"function"}),
        (
            ("The client for asyncio.", "The client for threads."),
            ("by name, for asyncio.", "by name, for threads."),
            (
                (
                    "    One client per process is enough in asyncio, too, if one loop runs at a time; all tasks of "
                    "the loop may use it.\n    Once its loop is closed, it can be used in the next one, unless you "
                    "passed a store: so a client may be created, and\n    may decorate functions, when a module is "
                    "imported. What it holds is not renewed between two loops; it is renewed\n    again from the "
                    "client's first call in the next loop.\n"
                ),
                (
                    "    One client per process is enough; all threads may use it.\n    "
                    "After a fork, the child's copy works as a client of its own, without the parent's locks.\n"
                ),
            ),
            (
                "If the lock is lost, the block is cancelled and raises LockLostError. Returns",
                "If the lock was lost meanwhile, the end of the block raises LockLostError. Returns",
            ),
            ("return await function()", "return returned(await function())"),
            ("import check_async_callback, check_async_work\n", "import check_callback, check_work, returned\n"),
            (
                "return the number of locks.",
                "return the number of locks. A signal handler may call it.",
            ),
            (
                "later calls raise ClosedError.",
                (
                    "later calls raise ClosedError.\n\n        A signal handler may call it. What cannot be released "
                    "there is released in the background,\n        or when the process exits.\n        "
                ),
            ),
        ),
    ),
    Module(
        "election.py",
        frozenset({"self.release"}),
        (
            ("Leader elections, for asyncio.", "Leader elections, for threads."),
            ("resigns at the end of its block, and cancels the block if lost.", "resigns at the end of its block."),
            (
                "If leadership is lost, the block is cancelled and raises LockLostError.",
                "If leadership was lost meanwhile, the end of the block raises LockLostError.",
            ),
            ("leave_at_exit=False", "leave_at_exit=True"),
        ),
    ),
    Module("rate_limit.py", frozenset({"function"}), (("Rate limits, for asyncio.", "Rate limits, for threads."),)),
    Module(
        "recipes.py",
        frozenset({"function"}),
        (
            ("keys, for asyncio.", "keys, for threads."),
            ("value = await function()", "value = returned(await function())"),
            ("return await function(*args, **kwargs)", "return returned(await function(*args, **kwargs))"),
            ("import check_async_work, check_coroutine\n", "import check_plain, check_work, returned\n"),
        ),
    ),
]


def generate(module: Module) -> str:
    """Translate one module of the asyncio façade."""
    path = SOURCE / module.name
    text = path.read_text("utf-8")
    for old, new in module.replacements:
        if text.count(old) != 1:
            sys.exit(f"{path.relative_to(ROOT)}: {old!r} should occur once, and does {text.count(old)} times")
        text = text.replace(old, new)
    text = "".join(line for line in text.splitlines(keepends=True) if not line.rstrip().endswith(ASYNCIO_ONLY))
    text = without_await(text, module.calls | own_coroutines(text))
    text = re.sub(r"^( *)async (def|with|for) ", r"\1\2 ", text, flags=re.MULTILINE)
    for old, new in TEXT:
        text = text.replace(old, new)
    for pattern, new in TYPES:
        text = re.sub(pattern, new, text)
    text = re.sub(r"\b\w+\b", lambda word: renamed(word[0]), text)
    if "drive(" in text:
        text = text.replace("from lockstead.core", f"{DRIVE}\nfrom lockstead.core", 1)
    origin = path.relative_to(ROOT)
    return tidy(f"# Generated from {origin} by `{COMMAND}`: edit that one.\n{text}", TARGET / module.name)


def renamed(word: str) -> str:
    """Translate one name."""
    return NAMES.get(word) or re.sub(r"^(_?)Async(?=[A-Z])", r"\1", word)


def own_coroutines(text: str) -> frozenset[str]:
    """Name the coroutine functions that a module defines, as they are called in it."""
    functions = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.AsyncFunctionDef)]
    return frozenset({*functions, *(f"self.{name}" for name in functions)})


def without_await(text: str, calls: frozenset[str]) -> str:
    """Replace each `await` by a plain call, or by `drive`, from the last to the first: the inner ones first."""
    awaits = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Await)]
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    edits: list[tuple[int, int, str]] = []
    for node in awaits:
        assert isinstance(node.value, ast.Call), f"line {node.lineno}: only calls are awaited"
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = offset(node.lineno, node.col_offset)
        inner = offset(node.value.lineno, node.value.col_offset)
        end = offset(node.end_lineno, node.end_col_offset)
        is_call = ast.unparse(node.value.func) in calls or ast.unparse(node.value.func).endswith(
            ("__aenter__", "__aexit__")
        )
        edits.append((start, inner, "" if is_call else "drive("))
        edits.append((end, end, "" if is_call else ")"))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def tidy(text: str, path: Path) -> str:
    """Drop imports that are not used any more, sort the others, and format."""
    ruff = str(Path(sysconfig.get_path("scripts")) / "ruff")
    for arguments in (["check", "--quiet", "--fix", "--select=F401,I"], ["format", "--quiet"]):
        command = [ruff, *arguments, f"--stdin-filename={path}", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            sys.exit(f"{path.relative_to(ROOT)}: ruff {arguments[0]} failed: {done.stderr}{done.stdout[-2000:]}")
        text = done.stdout
    return text


def main() -> None:
    """Write the generated modules, or compare them."""
    parser = argparse.ArgumentParser(description="Generate the blocking façade from the asyncio one.")
    parser.add_argument("--check", action="store_true", help="compare with what is checked in, and write nothing")
    is_check = parser.parse_args().check
    differences: list[str] = []
    for module in MODULES:
        path = TARGET / module.name
        new = generate(module)
        old = path.read_text("utf-8") if path.exists() else ""
        if is_check:
            name = str(path.relative_to(ROOT))
            differences += difflib.unified_diff(old.splitlines(), new.splitlines(), name, "generated", lineterm="")
        elif new != old:
            path.write_text(new, "utf-8")
    if differences:
        print(*differences, sep="\n")
        sys.exit(f"the blocking façade is not what its asyncio twin generates: edit that one, and run {COMMAND}")


if __name__ == "__main__":
    main()
