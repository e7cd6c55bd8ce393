"""What is public, and that its two halves say the same."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstead
from lockstead import (
    AsyncDistributedLock,
    AsyncElection,
    AsyncLeadership,
    AsyncLockHandle,
    AsyncRateLimiter,
    DistributedLock,
    Election,
    Leadership,
    LockError,
    LockHandle,
    RateLimiter,
    errors,
    port,
)

SRC = Path(lockstead.__file__).parent


def public(kind: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("blocking", "asynchronous"),
    [
        (DistributedLock, AsyncDistributedLock),
        (LockHandle, AsyncLockHandle),
        (Election, AsyncElection),
        (Leadership, AsyncLeadership),
        (RateLimiter, AsyncRateLimiter),
    ],
)
def test_both_facades_offer_the_same(blocking: type, asynchronous: type) -> None:
    ours, theirs = public(blocking), public(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, member in ours.items():
        if inspect.isfunction(member):
            other = theirs[name]
            assert callable(other)
            parameters, others = inspect.signature(member).parameters, inspect.signature(other).parameters
            assert list(parameters) == list(others), name
            assert [p.default for p in parameters.values()] == [p.default for p in others.values()], name
            plain = re.sub(r"Async|async", "", other.__doc__ or "")
            assert (member.__doc__ or "").split("\n")[0][:20] == plain.split("\n")[0][:20], name


def test_dunder_all_is_sorted_and_complete() -> None:
    assert lockstead.__all__ == sorted(lockstead.__all__)
    assert errors.__all__ == sorted(errors.__all__)
    assert sorted(port.__all__) == sorted(set(port.__all__))
    for module in (lockstead, port):
        for name in module.__all__:
            assert hasattr(module, name)
    assert set(errors.__all__) <= set(lockstead.__all__)


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_pickle_with_what_they_carry(name: str) -> None:
    kind = getattr(errors, name)
    details = {
        parameter: f"some {parameter}" for parameter in inspect.signature(kind).parameters if parameter != "message"
    }
    error = kind("message", **details)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "message"
    assert {key: getattr(copy, key) for key in details} == details
    assert "name" in details


def test_every_error_is_a_lock_error() -> None:
    errors = [getattr(lockstead, name) for name in lockstead.__all__ if name.endswith("Error")]
    assert len(errors) == 14
    assert all(issubclass(error, LockError) for error in errors)


def test_the_core_imports_no_driver() -> None:
    """The linter bans these imports too; this is what the linter is configured for."""
    core = {*SRC.glob("core/*.py"), *SRC.glob("primitives/*.py")} - {SRC / "core/lifecycle.py"}
    assert SRC / "core/engine.py" in core
    for path in core:
        assert not re.search(r"^(import|from) (asyncio|threading|time|random)\b", path.read_text(), re.MULTILINE), path


@pytest.mark.parametrize("module", ["lockstead", "lockstead.port", "lockstead.testing"])
def test_the_package_needs_nothing_but_python(module: str) -> None:
    program = (
        f"import sys; before = set(sys.modules); import {module};"
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(SRC.parent)},
    )
    assert done.stdout.strip() == "{'lockstead'}", done.stderr
