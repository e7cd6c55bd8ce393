"""No part of a password that stands in a URL unescaped is in any text that comes out."""

from __future__ import annotations

import io
import logging
import re
import socket
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any

import hypothesis.strategies as st
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, assume, example, given, settings

from lockstead.cli import main
from lockstead.core.runtime import drive
from lockstead.errors import InvalidInputError, LockError
from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores import open_store

SCHEMES = [
    *("postgresql", "postgres", "postgresql+advisory", "redis", "rediss", "valkey", "redis+sentinel", "redis+cluster"),
    *("redlock", "unix", "sqlite", "memory", "mysql"),
]
SHAPES = [
    "{scheme}://u:{secret}@127.0.0.1:1/db",
    "{scheme}://u:{secret}@127.0.0.1:1/0",
    "{scheme}://:{secret}@127.0.0.1:1/0?db=0",
    "{scheme}://u:{secret}@127.0.0.1",
    "{scheme}://u:{secret}@one:1,two:2/db",
    "{scheme}://u:{secret}",
    "{scheme}://u:{secret}@",
    "{scheme}://u:{secret}@127.0.0.1:1/db?bogus=1",
    "{scheme}://u:{secret}@127.0.0.1:1/db#part",
    "{scheme}://u:{secret}@[::1/db",
    "{scheme}://u:{secret}@127.0.0.1:port/db",
    "{scheme}://127.0.0.1:1/db?user=u&password={secret}",
    "{scheme}://127.0.0.1:1/service?sentinel_password={secret}",
    "{scheme}://127.0.0.1:1/db?push=no&listen=postgresql://u:{secret}@127.0.0.1:2/db",
    "{scheme}:u:{secret}@127.0.0.1/db",
    "{scheme} ://u:{secret}@127.0.0.1/db",
    "//u:{secret}@127.0.0.1/db",
    "u:{secret}@127.0.0.1/db",
    "host=127.0.0.1 port=1 user=u password={secret}",
    "host=127.0.0.1 password='{secret}' port=1",
]
PIECES = ["Zq7x", "Kw9v", "Jj3h", "8421", "5173"]
"""What secrets are made of: nothing else that is said contains these."""
HOSTILE = [
    *"@/#?:%&=+,;[]() '\"\\\t\n~!*$",
    "://",
    "%2",
    "%zz",
    "ü",
    "?host=",
    "?user=",
    "&port=",
    "@@",
    "?push=",
    "//",
]


@st.composite
def secrets(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(HOSTILE)), min_size=1, max_size=3))
    return "".join(piece + hostile for piece, hostile in parts) + draw(st.sampled_from(PIECES))


def is_recognizable(secret: str, shape: str) -> bool:
    """Return whether the URL could not be meant as it reads: u:8421/name is a host with a port, and a database."""
    if shape.endswith("u:{secret}"):
        return secret[0].isalpha() and "@" not in secret
    return "&port=" not in secret or "password=" not in shape


def texts_of(error: BaseException) -> Iterator[str]:
    """Give every text of an error, and of all that it stands for."""
    seen: list[BaseException | None] = []
    pending: list[BaseException | None] = [error]
    while pending:
        error_or_none = pending.pop()
        if error_or_none is None or error_or_none in seen:
            continue
        seen.append(error_or_none)
        pending += [error_or_none.__cause__, error_or_none.__context__]
        yield f"{error_or_none}\n{error_or_none!r}\n{error_or_none.args}\n{vars(error_or_none)}"
    lines = traceback.format_exception(error)
    yield "\n".join(line for line in lines if not line.startswith("  File"))


def check(secret: str, text: str) -> None:
    for start in range(len(secret) - 3):
        part = secret[start : start + 4]
        if any(piece[:3] in part or piece[1:] in part for piece in PIECES):
            assert part not in text, f"{part!r} of {secret!r} is in {text!r}"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name lead nowhere: wherever a URL is misunderstood to lead to."""

    def look_up(host: Any, *_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


class Pool:
    """What lockstead uses of psycopg_pool.ConnectionPool, which is not installed here."""

    __module__ = "psycopg_pool"

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.kwargs: dict[str, Any] = {}


def use(source: Any) -> Iterator[str]:
    """Open a store and ask it something; yield all texts that users see."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger("lockstead").addHandler(handler)
    try:
        store: Any = open_store(source, ThreadRuntime())
        yield repr(store)
        if type(store).__name__ != "SqliteStore":  # a path is shown as it is
            yield store.address
        if type(store).__name__ not in {"MemoryStore", "SqliteStore"}:
            yield repr([getattr(store, "_address", ""), getattr(store, "_statements", "")])
            try:
                drive(store.inspect("x", exact=True))
            finally:
                drive(store.close())
    except (LockError, ImportError) as error:
        yield from texts_of(error)
    finally:
        logging.getLogger("lockstead").removeHandler(handler)
        yield said.getvalue()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=secrets(), shape=st.sampled_from(SHAPES), scheme=st.sampled_from(SCHEMES))
@example("Zq7x@Kw9v", SHAPES[0], "postgresql")
@example("Zq7x/Kw9v", SHAPES[0], "postgresql")
@example("8421/Kw9v", SHAPES[0], "postgresql")
@example("8421?host=Kw9v", SHAPES[0], "postgresql")
@example("Zq7x%zzKw9v", SHAPES[0], "postgresql")
@example("Zq7x", SHAPES[5], "postgresql")
@example("Zq7x", SHAPES[5], "redis")
@example("8421#Kw9v", SHAPES[1], "redis")
@example("8421/Kw9v", SHAPES[1], "redis+sentinel")
@example("8421?Kw9v=5173", SHAPES[1], "redis")
@example("Zq7x&Kw9v=1", SHAPES[11], "postgresql")
@example("Zq7x", SHAPES[0], "mysql")
@example("Zq7x", SHAPES[0], "sqlite")
@example("Zq7x", SHAPES[18], "postgresql")
def test_a_store_shows_no_part_of_a_password(secret: str, shape: str, scheme: str) -> None:
    assume(is_recognizable(secret, shape))
    for text in use(shape.format(scheme=scheme, secret=secret)):
        check(secret, text)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(secret=secrets(), shape=st.sampled_from(SHAPES[:-2]))
@example("Zq7x@Kw9v", SHAPES[0])
@example("Zq7x@Kw9v", SHAPES[9])
def test_an_object_of_a_driver_shows_no_part_of_its_password(secret: str, shape: str) -> None:
    assume(is_recognizable(secret, shape))
    engine = None
    with suppress(Exception):  # what SQLAlchemy says of it; and in a query it takes an @ for the end of a password
        assert "?" not in shape
        assert not re.search(r"@.*\?", secret)  # it drops a query without "=", with what tells that it misread the host
        engine = sa.create_engine(shape.format(scheme="postgresql+psycopg", secret=secret))
    if engine is not None:
        for text in use(engine):
            check(secret, text)
    for text in use(Pool(shape.format(scheme="postgresql", secret=secret))):
        check(secret, text)


COMMANDS = [
    *(["ls"], ["show", "x"], ["release", "x", "--force"], ["doctor"], ["migrate"], ["migrate", "--print"]),
    *(["run", "x", "--timeout", "0"], ["run", "x", "--ttl"], ["ls", "--URL"], ["demo", "--workers", "4"]),
]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    secret=secrets(),
    shape=st.sampled_from(SHAPES),
    scheme=st.sampled_from([scheme for scheme in SCHEMES if scheme not in {"sqlite", "redlock"}]),
    command=st.sampled_from(COMMANDS),
    from_environment=st.booleans(),
    as_json=st.booleans(),
)
@example(secret="Zq7x@Kw9v", shape=SHAPES[0], scheme="memory", command=["ls"], from_environment=False, as_json=False)
@example(
    secret="Zq7x", shape=SHAPES[18], scheme="postgresql", command=["migrate"], from_environment=True, as_json=False
)
@example(
    secret="Zq7x", shape=SHAPES[0], scheme="postgresql", command=["ls", "--URL"], from_environment=False, as_json=False
)
@example(
    secret="Zq7x",
    shape=SHAPES[0],
    scheme="postgresql",
    command=["run", "x", "--ttl"],
    from_environment=False,
    as_json=True,
)
def test_the_command_shows_no_part_of_a_password(
    secret: str, shape: str, scheme: str, command: list[str], *, from_environment: bool, as_json: bool
) -> None:
    assume(is_recognizable(secret, shape))
    url = shape.format(scheme=scheme, secret=secret)
    takes_url = command[-1].startswith("--") and command[-1] not in {"--force", "--print"}
    flags = [url] if takes_url else [] if from_environment else [f"--url={url}"]
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setenv("LOCKSTEAD_URL", url if from_environment else "redis://127.0.0.1:1")
        patch.setattr(logging.getLogger("lockstead"), "handlers", [logging.StreamHandler(said)])
        code = main(
            [*command, *flags, *(["--json"] if as_json else []), *(["--", "true"] if command[0] == "run" else [])]
        )
    assert code != 0 or command[-1] == "--print"
    check(secret, said.getvalue())


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+advisory", "redis", "redis+cluster", "redlock"])
@pytest.mark.parametrize("special", ["@", "/", "?", "#"])
def test_an_error_says_what_to_do_with_an_unescaped_password(scheme: str, special: str) -> None:
    url = f"{scheme}://u:Zq7x{special}Kw9v@127.0.0.1:1/0"
    if scheme.startswith("postgresql") and special == "#":
        open_store(url, ThreadRuntime())  # which libpq reads as it is meant
        return
    with pytest.raises(InvalidInputError, match=r"percent-encode|%40"):
        open_store(url, ThreadRuntime())


@pytest.mark.parametrize("command", [*COMMANDS[:6], ["run", "x"], ["elect", "x"], ["demo"]], ids=" ".join)
@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_every_command_says_what_to_do_with_an_unescaped_password(
    command: list[str], scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{scheme}://u:Zq7x@Kw9v/5173@127.0.0.1:1/0"
    code = main([*command, "--url", url, *(["--", "true"] if command[0] in {"run", "elect"} else [])])
    said = "".join(capsys.readouterr())
    assert code == 2
    assert "percent-encode" in said or (scheme == "redis" and command[0] == "migrate")
    check("Zq7x@Kw9v/5173", said)
