"""Where a server is, and what a URL says of the store: from a URL, or from psycopg's or SQLAlchemy's objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.errors import InvalidInputError

MAX_IDENTIFIER = 63
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Address:
    """One server, or several of which one is right. Shown without the password, in errors and elsewhere."""

    conninfo: bytes = field(repr=False)
    label: str
    is_vouched: bool = False
    """Whether a pooler in between is known to give every connection a session of its own."""
    if_missing: str = ""
    """What to do where the server lacks a table or a function."""
    each: tuple[bytes, ...] = field(default=(), repr=False)
    """The servers one by one, if they are several to be tried in turn."""
    silent_until: dict[bytes, float] = field(default_factory=dict, repr=False, compare=False)
    """Which of them gave no answer of late, and until when they are tried after the others."""

    def __str__(self) -> str:
        return self.label


class Options(NamedTuple):
    """What a URL says of the store besides where it is."""

    schema: str = "leasehold"
    push: bool = True
    """Be told when a place holds; without it, waiters ask again with growing pauses."""
    listen: str = ""
    """Where to listen, if a transaction pooler stands before the server."""
    pooler: str = ""
    """"session": vouch that the pooler in between gives every connection a session of its own."""

    def changed(self, given: Mapping[str, Any]) -> Options:
        """Put what was given by name before what the URL says, and check it."""
        if unknown := set(given) - set(self._fields):
            msg = f"{', '.join(sorted(unknown))}: no such option; there are {', '.join(self._fields)}"
            raise InvalidInputError(msg)
        options = self._replace(**given)
        check_schema(options.schema)
        if options.pooler not in {"", "session"}:
            msg = f"pooler may only be 'session', got {options.pooler!r}"
            raise InvalidInputError(msg)
        return options


def check_schema(schema: str) -> str:
    """Accept what is safe in any part of a script: in quotes of either kind, and between dollars."""
    if isinstance(schema, str) and re.fullmatch(r"[\w-]+", schema) and len(schema.encode()) <= MAX_IDENTIFIER:
        return schema
    msg = f"schema must be 1 to {MAX_IDENTIFIER} bytes of letters, digits, '_' and '-', got {schema!r}"
    raise InvalidInputError(msg)


def parse_url(url: str) -> tuple[Address, Options]:
    """Read postgresql://, taking out what is meant for us: the rest is libpq's."""
    scheme, colon, rest = url.partition(":")
    try:
        parts = urlsplit(f"{scheme.partition('+')[0]}{colon}{rest}")
    except ValueError:
        msg = "this is no URL"
        raise InvalidInputError(msg) from None
    given = [pair.partition("=") for pair in parts.query.split("&") if pair]
    ours: dict[str, Any] = {key: unquote(value) for key, _, value in given if key in Options._fields}
    if "push" in ours:
        ours["push"] = _flag(ours["push"])
    theirs = "&".join("".join(pair) for pair in given if pair[0] not in Options._fields)
    try:
        settings = conninfo_to_dict(urlunsplit(parts._replace(query=theirs)))
    except psycopg.Error as error:
        msg = f"{scheme}://…{parts.path}: {error}".strip()
        raise InvalidInputError(msg) from None
    return _address(settings), Options().changed(ours)


def from_object(source: Any) -> Address:
    """Take the settings of a psycopg connection or pool, or of an SQLAlchemy engine; it is not used itself."""
    engine = getattr(source, "sync_engine", source)
    url = getattr(engine, "url", None)
    if url is not None and hasattr(url, "get_backend_name"):
        return _from_sqlalchemy(url)
    if isinstance(source, psycopg.Connection | psycopg.AsyncConnection):
        settings = dict(source.info.get_parameters())
        if source.info.password:
            settings["password"] = source.info.password
        return _address(settings)
    conninfo = getattr(source, "conninfo", None)
    if isinstance(conninfo, str):  # of psycopg_pool
        extra = {key: value for key, value in (source.kwargs or {}).items() if key in _KEYWORDS}
        return _address(conninfo_to_dict(conninfo, **extra))
    msg = f"{type(source).__name__}: pass a URL, an SQLAlchemy engine, or a psycopg connection or pool"
    raise InvalidInputError(msg)


_KEYWORDS = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}


def _from_sqlalchemy(url: Any) -> Address:
    if url.get_backend_name() != "postgresql":
        msg = f"the engine is for {url.get_backend_name()}: leasehold needs one for postgresql"
        raise InvalidInputError(msg)
    settings = {
        "host": url.host,
        "port": url.port,
        "user": url.username,
        "password": str(url.password) if url.password is not None else None,
        "dbname": url.database,
        **{key: value for key, value in url.query.items() if key in _KEYWORDS and isinstance(value, str)},
    }
    return _address({key: value for key, value in settings.items() if value is not None})


def _address(settings: Mapping[str, Any]) -> Address:
    kept = {"fallback_application_name": "leasehold", **settings, "client_encoding": "UTF8"}
    host = settings.get("host") or settings.get("hostaddr") or settings.get("service") or "localhost"
    port = settings.get("port")
    database = settings.get("dbname")
    label = f"{host}{f':{port}' if port else ''}{f'/{database}' if database else ''}"
    each = tuple(make_conninfo("", **one).encode() for one in _one_by_one(kept))
    return Address(make_conninfo("", **kept).encode(), label, each=each)


def _one_by_one(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Take several servers apart, unless libpq has to compare them.

    It tries them in turn, but waits for each as long as for all of them: that one is silent would cost all the time.
    """
    lists = {key: str(settings[key]).split(",") for key in ("host", "hostaddr", "port") if settings.get(key)}
    count = max(map(len, lists.values()), default=1)
    is_compared = settings.get("target_session_attrs") == "prefer-standby" or "load_balance_hosts" in settings
    if count == 1 or is_compared or any(len(values) not in {1, count} for values in lists.values()):
        return []
    return [{**settings, **{key: (values * count)[n] for key, values in lists.items()}} for n in range(count)]


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        msg = f"push must be yes or no, got {text!r}"
        raise InvalidInputError(msg)
    return text.lower() in _TRUE
