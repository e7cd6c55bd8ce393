"""What is public, and that its two halves say the same."""

from __future__ import annotations

import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstead
from lockstead import AsyncDistributedLock, DistributedLock, LockError, Once, RateLimiter, Singleton, errors, port
from lockstead.stores.postgres.address import Options as PostgresOptions
from lockstead.stores.redis.address import Options as RedisOptions

SRC = Path(lockstead.__file__).parent


def public(kind: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}


PAIRS: list[tuple[type, type]] = [
    (getattr(lockstead, name.removeprefix("Async")), getattr(lockstead, name))
    for name in lockstead.__all__
    if name.startswith("Async")
]
GENERATED = {DistributedLock, Once, RateLimiter, Singleton}
"""The classes of modules that tools/unasync.py writes: these agree in every word that is not about the runtime."""


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_facades_offer_the_same(blocking: type, asynchronous: type) -> None:
    ours, theirs = public(blocking), public(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, member in {**ours, "__init__": blocking.__init__}.items():  # type: ignore[misc]
        if inspect.isfunction(member):
            other = getattr(asynchronous, name)
            assert callable(other)
            parameters, others = inspect.signature(member).parameters, inspect.signature(other).parameters
            assert list(parameters) == list(others), name
            assert [p.default for p in parameters.values()] == [p.default for p in others.values()], name
            assert [p.kind for p in parameters.values()] == [p.kind for p in others.values()], name
            plain = re.sub(r"Async|async ", "", other.__doc__ or "")
            assert (member.__doc__ or "").split("\n")[0][:20] == plain.split("\n")[0][:20], name
            if blocking in GENERATED:
                types = [re.sub(r"Async|Awaitable\[(T)\]", r"\1", str(p.annotation)) for p in others.values()]
                assert [str(p.annotation) for p in parameters.values()] == types, name
                if name not in {"close", "lock", "release_all"}:
                    assert member.__doc__ in {other.__doc__, plain}, name


ACQUIRING = (
    *("acquire", "try_acquire", "lock", "locked", "read_lock", "write_lock"),
    *("semaphore", "multi_lock", "once", "with_lock"),
)
OPTIONS = ("ttl", "timeout", "metadata", "max_hold", "at_least", "renew", "reentrant", "on_lost", "retry")
WITHOUT = {"try_acquire": {"timeout"}, "multi_lock": {"reentrant"}, "once": {"at_least", "reentrant"}}
"""Options that would always be refused, so that editors do not offer them."""


def meanings(documented: object) -> dict[str, str]:
    """Read the options that a docstring explains: lines that begin with `option:`, and their continuation."""
    text = inspect.getdoc(documented) or ""
    return dict(re.findall(r"^(\w+): ((?:.|\n    )+)$", text, re.MULTILINE))


def keywords(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return [each for each in inspect.signature(function).parameters.values() if each.kind is each.KEYWORD_ONLY]


@pytest.mark.parametrize("method", ACQUIRING)
@pytest.mark.parametrize("client", [DistributedLock, AsyncDistributedLock])
def test_help_shows_every_option_its_default_and_its_meaning(client: type, method: str) -> None:
    function = getattr(client, method)
    wanted = [option for option in OPTIONS if option not in WITHOUT.get(method, ())]
    assert [each.name for each in keywords(function)] == wanted
    page = pydoc.render_doc(function, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    signature, _, text = page.partition("\n    ")
    for option in wanted:
        assert re.search(rf"\b{option}: [^=]+ = \S", signature), option
        assert f"\n    {option}: " in text, option
    said = meanings(function)
    reference = meanings(DistributedLock.acquire)
    assert {option: said[option] for option in wanted} == {option: reference[option] for option in wanted}


@pytest.mark.parametrize("method", ["singleton", "election", "rate_limiter"])
def test_the_options_of_the_other_primitives_are_explained(method: str) -> None:
    function = getattr(DistributedLock, method)
    wanted = {each.name for each in keywords(function)} or {"limit", "per", "burst"}
    assert set(meanings(function)) == wanted


def test_help_of_a_client_explains_its_options_and_those_of_its_stores() -> None:
    explained = meanings(DistributedLock)
    own = {"store", *(each.name for each in keywords(DistributedLock.__init__))}
    stores = {
        name: str(value) for kind in (RedisOptions, PostgresOptions) for name, value in kind._field_defaults.items()
    }
    assert set(explained) == own | stores.keys()
    for name, default in stores.items():
        assert f"{default} by default" in explained[name].replace('"', ""), name


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
