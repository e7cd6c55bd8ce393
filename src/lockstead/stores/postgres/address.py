"""The address of a server and the options of its store, read from a URL, or from an object of psycopg or SQLAlchemy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lockstead.core.checks import check_flag
from lockstead.core.quoting import escaped
from lockstead.errors import InvalidInputError, UnknownOptionError
from lockstead.stores.postgres.table.schema import check_schema

LISTS = ("host", "hostaddr", "port")
"""The settings of libpq that may list a value for each of several servers."""
_NEVER_SHOWN = {"password", "sslpassword", "options", "listen"}
"""Settings whose values appear in no message, so that an @ in them need not be escaped."""
_AMBIGUOUS = (
    "this postgresql:// URL cannot be read, or in more than one way: percent-encode special characters in its user, "
    "password and options (@ is %40, / is %2F, ? is %3F, # is %23, : is %3A, & is %26, % is %25)"
)
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Address:
    """One server, or several of which one is the right one. Shown without the password, in errors and elsewhere."""

    settings: Mapping[str, Any] = field(repr=False)
    """Those of libpq; several hosts are still one comma-separated value."""
    label: str
    is_session_pooled: bool = False
    """The user declares that a pooler before the server gives every connection a session of its own."""
    if_missing: str = ""
    """What an error advises where the server lacks a table or a function."""
    unresponsive_until: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    """The servers that did not answer lately, each with the time until which it is tried after the others."""

    def __str__(self) -> str:
        return self.label

    @property
    def conninfo(self) -> str:
        return make_conninfo("", **self.settings)


class Options(NamedTuple):
    """The options of a store in its URL, besides the address."""

    schema: str = "lockstead"
    push: bool = True
    """Receive a notification when a place holds; without it, waiters poll at growing intervals."""
    listen: str = ""
    """The address to listen on, where `LISTEN` cannot work: behind a pooler of transactions."""
    pooler: str = ""
    """"session" declares that the pooler before the server gives every connection a session of its own."""
    advisory: bool = False
    """Use the server's advisory locks instead of the lease table."""

    def table_only(self) -> list[str]:
        """Name the options given that have no effect on advisory locks."""
        return [name for name in ("schema", "push", "listen") if getattr(self, name) != self._field_defaults[name]]

    def with_overrides(self, given: Mapping[str, Any]) -> Options:
        """Replace options by those given by name, and check them."""
        if unknown := set(given) - set(self._fields):
            msg = f"{', '.join(sorted(unknown))}: no such option; there are {', '.join(self._fields)}"
            raise UnknownOptionError(msg, option=min(unknown), accepted=self._fields)
        for name in ("push", "advisory"):
            check_flag(given.get(name, False), name)
        if not isinstance(given.get("listen", ""), str):
            msg = f"listen must be a URL, got {given['listen']!r:.80}"
            raise InvalidInputError(msg)
        options = self._replace(**given)
        check_schema(options.schema)
        if options.pooler not in {"", "session"}:
            msg = f"pooler may only be 'session', got {options.pooler!r}"
            raise InvalidInputError(msg)
        return options


def parse_url(url: str) -> tuple[Address, Options]:
    """Read a postgresql:// URL: the store's options are taken out, the rest is libpq's.

    No message quotes a part of a URL that may be part of a password.
    """
    scheme, _, rest = url.partition(":")
    location, _, query = rest.partition("?")
    given = [pair.partition("=") for pair in query.split("&") if pair]
    if _may_expose_password(location, given):
        raise InvalidInputError(_AMBIGUOUS)
    ours: dict[str, Any] = {key: unquote(value) for key, _, value in given if key in Options._fields}
    for name in {"push", "advisory"} & set(ours):
        ours[name] = _flag(name, ours[name])
    if scheme.lower().endswith("+advisory"):
        ours["advisory"] = True
    has_password = any(key in {"password", "listen"} for key, _, _ in given)
    theirs = [pair for pair in given if pair[0] not in Options._fields]
    unknown = [key for key, _, _ in theirs if key not in _KEYWORDS | {"ssl"}]
    if unknown and (has_password or any(not re.fullmatch(r"\w+", key) for key in unknown)):
        raise InvalidInputError(_AMBIGUOUS)  # an unescaped & or # may have cut a password
    if unknown:
        msg = f"{', '.join(unknown)}: no such option, neither of libpq nor of lockstead: {', '.join(Options._fields)}"
        raise InvalidInputError(msg)
    return _address(
        _read(f"postgresql:{location}?{'&'.join(''.join(pair) for pair in theirs)}")
    ), Options().with_overrides(ours)


def _may_expose_password(location: str, given: Sequence[tuple[str, str, str]]) -> bool:
    """Return whether an @ is where none can be, or something else where a port is: it may be part of a password."""
    authority, _, path = location.removeprefix("//").partition("/")
    hosts = authority.rpartition("@")[2].split(",")
    return (
        not location.startswith("//")
        or authority.count("@") > 1
        or not all(re.fullmatch(r"([^:\[\]]*|\[[^\[\]]*\])(:[0-9]*)?", host) for host in hosts)
        or "@" in path
        or any(
            "@" in key or ("@" in (value[1:] if key == "host" else value) and key not in _NEVER_SHOWN)
            for key, _, value in given
        )
    )


def _read(conninfo: str, **more: Any) -> dict[str, Any]:
    with suppress(psycopg.Error, ValueError):  # these may quote a password, even as the context of another error
        return conninfo_to_dict(conninfo, **more)
    raise InvalidInputError(_AMBIGUOUS)


def from_object(source: Any) -> Address:
    """Take the address of a psycopg connection or pool, or of an SQLAlchemy engine; the object itself is not used."""
    engine = getattr(source, "sync_engine", source)
    url = getattr(engine, "url", None)
    if url is not None and hasattr(url, "get_backend_name"):
        return _from_sqlalchemy(engine)
    if isinstance(source, psycopg.Connection | psycopg.AsyncConnection):
        return _from_connection(source)
    conninfo = getattr(source, "conninfo", None)
    if isinstance(conninfo, str):  # a pool of psycopg_pool
        extra = {key: value for key, value in (source.kwargs or {}).items() if key in _KEYWORDS}
        scheme, _, rest = conninfo.partition(":")
        if scheme in {"postgresql", "postgres"}:
            location, _, query = rest.partition("?")
            if _may_expose_password(location, [pair.partition("=") for pair in query.split("&")]):
                raise InvalidInputError(_AMBIGUOUS)
        return _address(_read(conninfo, **extra))
    msg = f"{type(source).__name__}: pass a URL, an SQLAlchemy engine, or a psycopg connection or pool"
    raise InvalidInputError(msg)


_KEYWORDS = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}


def _from_connection(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> Address:
    if connection.closed:
        msg = "this psycopg connection is closed: pass an open one, or a URL"
        raise InvalidInputError(msg)
    settings = dict(connection.info.get_parameters())
    if connection.info.password:
        settings["password"] = connection.info.password
    if "host" in settings:
        settings.pop("hostaddr", None)  # the host's address at that time
    return _address(settings)


def _from_sqlalchemy(engine: Any) -> Address:
    url = engine.url
    if url.get_backend_name() != "postgresql":
        msg = f"the engine is for {url.get_backend_name()}: lockstead needs one for postgresql"
        raise InvalidInputError(msg)
    rest = [url.database or "", *(str(value) for key, value in url.query.items() if key not in _NEVER_SHOWN)]
    if any("@" in part for part in rest):  # SQLAlchemy has read a part of the password as something else
        raise InvalidInputError(_AMBIGUOUS)
    if engine.driver in {"psycopg", "psycopg2", "psycopg_async"}:
        _, given = engine.dialect.create_connect_args(url)
        settings = {key: value for key, value in given.items() if key in _KEYWORDS}  # the others are for psycopg
    else:
        fields = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
        settings = fields | {"dbname": url.database, **url.query}
    if unknown := settings.keys() - _KEYWORDS:
        msg = f"{', '.join(sorted(unknown))} in this engine's URL is unknown to libpq: pass a postgresql:// URL instead"
        raise InvalidInputError(msg)
    return _address({key: str(value) for key, value in settings.items() if value is not None})


def _address(settings: Mapping[str, Any]) -> Address:
    counts = {len(str(settings[key]).split(",")) for key in LISTS if settings.get(key)} - {1}
    if len(counts) > 1:
        msg = "a URL must have as many ports as hosts, or one for all"
        raise InvalidInputError(msg)
    # An @ may only be first, in the name of an abstract socket.
    if any("@" in host[1:] for host in str(settings.get("host") or "").split(",")):
        raise InvalidInputError(_AMBIGUOUS)
    for key in ("port", "connect_timeout"):
        for value in str(settings.get(key) or 0).split(","):
            if value and not re.fullmatch(r"-?\d+", value):  # it may be a password: user:password without a host
                msg = f"{key} must be a number: postgresql://user:password@host:port/database?connect_timeout=seconds"
                raise InvalidInputError(msg)
    kept = {"fallback_application_name": "lockstead", **settings, "client_encoding": "UTF8"}
    where = str(settings.get("host") or settings.get("hostaddr") or settings.get("service") or "localhost")
    hosts = ",".join(f"[{host}]" if ":" in host else host for host in where.split(","))
    port = settings.get("port")
    database = settings.get("dbname")
    return Address(kept, escaped(f"{hosts}{f':{port}' if port else ''}{f'/{database}' if database else ''}"))


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        msg = f"{name} must be yes or no, got {text!r}"
        raise InvalidInputError(msg)
    return text.lower() in _TRUE
