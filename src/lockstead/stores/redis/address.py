"""Server addresses and credentials: from a URL, or from the settings of a redis-py or valkey-py client."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lockstead.core.checks import check_flag
from lockstead.core.quoting import escaped
from lockstead.errors import InvalidInputError, UnknownOptionError
from lockstead.stores.quorum.members import DEFAULT_NODE_TIMEOUT
from lockstead.stores.redis.resp import pack

PORT = 6379
SENTINEL_PORT = 26379
_TLS_OPTIONS = {
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
}
_SECRET_OPTIONS = {"sentinel_password", "ssl_password"}
"""Options whose values appear in no message, so that an @ in them need not be escaped."""
_QUERY = _TLS_OPTIONS | {"db", "sentinel_username", "sentinel_password"}
_ESCAPE = "in a user, password or option / ? # @ & % are written as %2F %3F %23 %40 %26 %25 (percent-encode them)"
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Address:
    """One server and the credentials for it. Its text, in errors and elsewhere, never contains the password."""

    host: str = "localhost"
    port: int = PORT
    path: str = ""
    """The path of a Unix socket, instead of host and port."""
    database: int = 0
    credentials: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False)
    """Returns (), (password,) or (user, password) for each new connection."""
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        where = self.path or (f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")
        return escaped(f"{where}/{self.database}" if self.database else where)

    def greeting(self) -> list[bytes]:
        """Pack the first commands of a new connection; each is answered with OK."""
        commands: list[tuple[str, ...]] = []
        if credentials := self.credentials():
            commands.append(("AUTH", *credentials))
        if self.database:
            commands.append(("SELECT", str(self.database)))
        return [pack(command) for command in commands]

    def at(self, host: str, port: int) -> Address:
        """Return the address of another server with the same credentials."""
        return replace(self, host=host, port=port, path="")


class Deployment(NamedTuple):
    """The servers that form one store: a single server, a cluster, or a primary and replicas monitored by Sentinels."""

    addresses: Sequence[Address]
    """The server itself, or the seeds of a cluster; for Sentinel, a template with the credentials for the primary."""
    is_cluster: bool = False
    sentinels: Sequence[Address] = ()
    service: str = ""

    def __str__(self) -> str:
        """Write it like its URL, but without user, password and options."""
        first, *_ = self.addresses
        scheme = "rediss" if first.tls else "redis"
        if self.sentinels:
            return f"{scheme}+sentinel://{','.join(map(str, self.sentinels))}/{escaped(self.service)}"
        if self.is_cluster:
            return f"{scheme}+cluster://{','.join(map(str, self.addresses))}"
        return f"{'unix' if first.path else scheme}://{first}"


class Options(NamedTuple):
    """The options of a URL, besides the address: see docs/redis.md."""

    key_prefix: str = "lockstead"
    min_replicas: int = 0
    confirm_grants: bool = False
    strict: bool = False
    node_timeout: float = DEFAULT_NODE_TIMEOUT

    def changed(self, given: Mapping[str, Any]) -> Options:
        """Override the options of the URL by those given by name."""
        if unknown := set(given) - set(self._fields):
            raise UnknownOptionError(_no_such_option(unknown), option=min(unknown), accepted=self._fields)
        for name in ("confirm_grants", "strict"):
            check_flag(given.get(name, False), name)
        node_timeout = given.get("node_timeout", self.node_timeout)
        if isinstance(node_timeout, bool) or not isinstance(node_timeout, int | float):
            msg = f"node_timeout must be a number of seconds, got {node_timeout!r:.80}"
            raise InvalidInputError(msg)
        return self._replace(**given)


def parse_url(url: str) -> tuple[list[Deployment], Options]:
    """Parse redis://, rediss://, unix://, valkey://, valkeys://, redis+sentinel://, redis+cluster:// and redlock://.

    A redlock:// URL is one deployment per host.
    """
    try:
        _check(url)
        return _parse(_split(url))
    except ValueError as error:
        problem = str(error)
    # Outside of the block: the error's context would be one that may quote a password.
    raise InvalidInputError(f"{url.partition(':')[0].lower()}://…: {problem}")


def _check(url: str) -> None:
    """Refuse what may be an unescaped password, before any of it gets into a message or is used as an address."""
    location, _, query = url.partition("://")[2].partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    has_secret = any(key in _SECRET_OPTIONS for key, _, _ in pairs)
    is_misplaced = "@" in location.partition("/")[2] and not url.startswith("unix:")
    if (
        "#" in url
        or "://" not in url
        or is_misplaced
        or any("@" in key or ("@" in value and key not in _SECRET_OPTIONS) for key, _, value in pairs)
        or (has_secret and not {key for key, _, _ in pairs} <= _QUERY | set(Options._fields))
    ):
        raise ValueError(_ESCAPE)


def _split(text: str) -> SplitResult:
    with suppress(ValueError):  # its text may quote a password
        return urlsplit(text)
    msg = "this is not a URL"
    raise ValueError(msg)


def _parse(parts: SplitResult) -> tuple[list[Deployment], Options]:
    base, _, kind = parts.scheme.replace("redlock", "redis+redlock").partition("+")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    where = parts.path.strip("/")
    service = ""
    if kind == "sentinel":
        service, _, where = where.partition("/")
    is_path = base == "unix"
    template = Address(
        path=unquote(parts.path) if is_path else "",
        database=_database((not is_path and where) or query.pop("db", "0")),
        credentials=_fixed_credentials(unquote(parts.username or ""), unquote(parts.password or "")),
        tls=_context(_take_tls(query)) if base in ("rediss", "valkeys") or kind == "redlocks" else None,
    )
    if is_path:
        if not template.path or _hosts(parts):
            msg = "name the socket: unix:///path/to/socket"
            raise ValueError(msg)
        return [Deployment([template])], _options(query)
    if parts.netloc.count("@") > 1:
        msg = f"all hosts share one user and password, which come first; and {_ESCAPE}"
        raise ValueError(msg)
    default = SENTINEL_PORT if kind == "sentinel" else PORT
    hosts = [template.at(*_host_and_port(host, default)) for host in _hosts(parts).strip(",").split(",")]
    if kind == "cluster":
        return [Deployment(hosts, is_cluster=True)], _options(query)
    if kind in ("redlock", "redlocks"):
        return [Deployment([host]) for host in hosts], _options(query)
    if kind == "sentinel":
        login = _fixed_credentials(query.pop("sentinel_username", ""), query.pop("sentinel_password", ""))
        sentinels = [Address(host.host, host.port, credentials=login, tls=template.tls) for host in hosts]
        if not service:
            msg = "name the service: redis+sentinel://host1,host2/SERVICE"
            raise ValueError(msg)
        return [Deployment([template], sentinels=sentinels, service=unquote(service))], _options(query)
    if len(hosts) > 1:
        msg = "several hosts are a redis+cluster://, a redis+sentinel:// or a redlock://"
        raise ValueError(msg)
    return [Deployment(hosts)], _options(query)


def from_client(client: Any) -> Deployment:
    """Read the settings of a redis-py or valkey-py client, blocking or asyncio; the client itself is not used."""
    if hasattr(client, "nodes_manager"):
        startup = client.nodes_manager.startup_nodes.values()
        settings = getattr(client, "connection_kwargs", None) or client.nodes_manager.connection_kwargs
        template = _from_settings(settings, is_tls=_is_tls(settings.get("connection_class"), settings))
        return Deployment([template.at(node.host, int(node.port)) for node in startup], is_cluster=True)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        msg = f"neither a URL nor a store nor a redis-py client: {type(client).__name__}"
        raise InvalidInputError(msg)
    settings = pool.connection_kwargs
    template = _from_settings(settings, is_tls=_is_tls(pool.connection_class, settings))
    if hasattr(pool, "sentinel_manager"):
        pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
        sentinels = [
            _from_settings(each.connection_kwargs, is_tls=_is_tls(each.connection_class, each.connection_kwargs))
            for each in pools
        ]
        return Deployment([template], sentinels=sentinels, service=pool.service_name)
    return Deployment([template])


def _from_settings(settings: Mapping[str, Any], *, is_tls: bool) -> Address:
    provider = settings.get("credential_provider")
    return Address(
        host=settings.get("host") or "localhost",
        port=int(settings.get("port") or PORT),
        path=settings.get("path") or "",
        database=int(settings.get("db") or 0),
        credentials=(
            provider.get_credentials
            if provider is not None
            else _fixed_credentials(settings.get("username") or "", settings.get("password") or "")
        ),
        tls=_context({name: value for name, value in settings.items() if name in _TLS_OPTIONS}) if is_tls else None,
    )


def _is_tls(connection_class: type | None, settings: Mapping[str, Any]) -> bool:
    return "SSL" in getattr(connection_class, "__name__", "") or bool(settings.get("ssl"))


def _fixed_credentials(username: str, password: str) -> Callable[[], tuple[str, ...]]:
    if username:
        return lambda: (username, password)
    return lambda: (password,) if password else ()


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _host_and_port(text: str, default: int) -> tuple[str, int]:
    parts = _split(f"//{text}")
    with suppress(ValueError):  # its text quotes what may be part of a password
        return parts.hostname or "localhost", parts.port or default
    msg = f"a port is a number from 1 to 65535; and {_ESCAPE}"
    raise ValueError(msg)


def _database(text: str) -> int:
    if not text.isdecimal():
        msg = "a database is a number: redis://host:port/0"
        raise ValueError(msg)
    return int(text)


def _options(query: dict[str, str]) -> Options:
    readers: dict[str, Callable[[str], Any]] = {
        "key_prefix": str,
        "min_replicas": int,
        "confirm_grants": _boolean,
        "strict": _boolean,
        "node_timeout": float,
    }
    if unknown := set(query) - set(readers):
        raise ValueError(_no_such_option(unknown))
    kinds: dict[Any, str] = {int: "a whole number", float: "a number of seconds"}
    options: dict[str, Any] = {}
    for name, value in query.items():
        try:
            options[name] = readers[name](value)
        except ValueError:
            msg = f"{name} must be {kinds.get(readers[name], 'true or false')}, got {value!r:.80}"
            raise ValueError(msg) from None
    return Options(**options)


def _no_such_option(names: Iterable[str]) -> str:
    return (
        f"{', '.join(sorted(names))}: no such option; there are {', '.join(Options._fields)}, and db and ssl_… in a URL"
    )


def _boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        msg = f"{text!r} is neither true nor false"
        raise ValueError(msg)
    return text.lower() in _TRUE


def _take_tls(query: dict[str, str]) -> dict[str, Any]:
    return {name: query.pop(name) for name in list(query) if name in _TLS_OPTIONS}


def _context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Build the TLS context that redis-py would build from the same options."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        context = ssl.create_default_context(
            cafile=given.get("ssl_ca_certs"), capath=given.get("ssl_ca_path"), cadata=given.get("ssl_ca_data")
        )
        check_hostname = given.get("ssl_check_hostname", True)
        context.check_hostname = _boolean(str(check_hostname))
        wanted = options.get("ssl_cert_reqs", "required")
        if wanted in (None, "none", "None", ssl.CERT_NONE):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif wanted in ("optional", ssl.CERT_OPTIONAL):
            context.verify_mode = ssl.CERT_OPTIONAL
        elif wanted not in ("required", ssl.CERT_REQUIRED):
            msg = f"ssl_cert_reqs is none, optional or required, not {wanted!r}"
            raise InvalidInputError(msg)
        if "ssl_certfile" in given:
            context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), given.get("ssl_password"))
        if "ssl_min_version" in given:
            context.minimum_version = ssl.TLSVersion(int(given["ssl_min_version"]))
        if "ssl_ciphers" in given:
            context.set_ciphers(given["ssl_ciphers"])
    except OSError as error:
        msg = f"TLS: {error}"
        raise InvalidInputError(msg) from error
    return context
