"""Errors of a server: what failed, whether a retry may help, and what to do about it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from socket import gaierror
from typing import Any

import hiredis

from lockstead.core.checks import MAX_NAME
from lockstead.core.quoting import command_for
from lockstead.errors import DamagedError, StoreError
from lockstead.stores.redis.address import Address
from lockstead.stores.transport.pipeline import CONNECTION_REFUSED, QueuedError
from lockstead.stores.transport.recognition import WrongServerError, is_plain_redis

_TRANSIENT = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNBLOCKED"}
_ADVICE = {
    "WRONGPASS": "check user and password: redis://USER:PASSWORD@HOST",
    "NOAUTH": "it requires a password: redis://:PASSWORD@HOST",
    "NOPERM": "the rights that a user of this store needs are listed in docs/redis.md, Rights",
    "READONLY": "use its primary, or redis+sentinel:// or redis+cluster://, which find it",
    "OOM": "raise maxmemory, or make room",
    "MISCONF": "repair the server's persistence",
    "NOREPLICAS": "its min-replicas-to-write asks for more replicas than are connected",
    "LOADING": "it has just started: retry once it has loaded its data",
}
_CODE = re.compile(rf"\b({'|'.join([*_TRANSIENT, *_ADVICE, 'NOSCRIPT', 'MOVED', 'ASK', 'DAMAGED', 'WRONGTYPE'])})\b")
_LACKS_RIGHT = re.compile(r"ACL failure in script|The user executing the script can't")
"""How a server refuses a command inside a script: without an error code."""
_DAMAGED = re.compile(r"DAMAGED\((\w*): ([^)]*)\)")
"""What our scripts report of a damaged record: the field in hexadecimal, and what is wrong."""
OWN_FIELD = "\0"
"""The bucket's own record: the counter and the clock of all names in it."""

FAILURES = (OSError, UnicodeError, hiredis.ProtocolError)
"""Exceptions that end a connection."""


def code_of(error: Exception) -> str:
    """Find the code of an error reply; Redis before 7 puts that of a script's error in the middle of the text."""
    text = str(error)
    if found := _CODE.search(text):
        return found[1]
    return "NOPERM" if _LACKS_RIGHT.search(text) else ""


def refused(address: Address, error: Exception, command: str = "") -> StoreError:
    """Translate an error reply. Nothing was applied, unless a script failed unexpectedly: its outcome is unknown.

    `command` is the refused one, where it is known.
    """
    code = code_of(error)
    text = str(error).removeprefix("ERR ")
    if code == "" and "AUTH" in text:
        code = "WRONGPASS"
    advice = _ADVICE.get(code, "")
    if code == "NOPERM" and command and " run th" in text:  # otherwise a key or a channel is refused
        advice = f"it has to be allowed to {command.upper()}: {advice}"
    is_transient = code in _TRANSIENT or (code == "" and "user_script" in text) or "max number of clients" in text
    failure = StoreError(f"{address}: {text}{advice and f' ({advice})'}", transient=is_transient)
    failure.__cause__ = error
    return failure


def damaged(address: Address, key: bytes, text: str) -> DamagedError:
    """Translate a script's report of a damaged record, and name the remedy."""
    where = key.decode(errors="backslashreplace")
    found = _DAMAGED.search(text)
    if found is None:  # it is WRONGTYPE
        msg = (
            f"{address}: the key {where!r} holds something else than lockstead's records: find out what wrote it, "
            f"then delete it, or choose another key_prefix ({text.removeprefix('ERR ')})"
        )
        return DamagedError(msg, key=where)
    field, what = bytes.fromhex(found[1]), found[2]
    name = field.partition(b"\0")[0].decode(errors="backslashreplace")
    shown = field.decode(errors="backslashreplace")
    if not field:
        msg = f"{address}: the key {where!r} is damaged: {what} (delete it: the rate limit then starts empty)"
    elif shown == OWN_FIELD:
        msg = (
            f"{address}: the counter and the clock of all names in {where!r} (field {shown!r}) are damaged: {what} "
            "(`lockstead release NAME --force`, with a name that nothing holds, resets them: fences then go on "
            "from the server's clock)"
        )
    else:
        return unreadable(address, key, field, name, what)
    return DamagedError(msg, name=name, key=where, field=shown)


def unreadable(address: Address, key: bytes, field: bytes, name: str, what: str) -> DamagedError:
    """Report that a name's record is damaged, and name the remedy."""
    where, shown = key.decode(errors="backslashreplace"), field.decode(errors="backslashreplace")
    is_askable = name.isprintable() and 0 < len(name) <= MAX_NAME and "\\x" not in name
    remedy = f"`{command_for(name, 'release', '--force')}` clears it" if is_askable else "delete it with HDEL"
    msg = f"{address}: the record of {name!r} in {where!r} (field {shown!r}) is damaged: {what} ({remedy})"
    return DamagedError(msg, name=name, key=where, field=shown)


def check_all(address: Address, replies: Iterable[Any]) -> None:
    """Raise the first error among replies."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise refused(address, reply)


def check_speaks_tls(address: Address) -> None:
    """Raise WrongServerError if the server answers without TLS, which its URL says that it has. Blocks for a moment."""
    if is_plain_redis(address.host, address.port):
        msg = "this server answers without TLS, and not with it: write redis:// (redlock://) instead of rediss://"
        raise WrongServerError(msg)


def unknown_outcome(address: Address, error: BaseException) -> StoreError:
    """Translate a failure of the connection: whether the request was applied is unknown."""
    if isinstance(error, ssl.SSLError):
        what = f"TLS: {error.reason or error} (ssl_ca_certs names the authority to trust)"
    elif isinstance(error, hiredis.ProtocolError):
        what = f"this is not a Redis server, or it requires TLS (rediss://): {error}"
    elif isinstance(error, TimeoutError):
        what = str(error) or "no answer in time"
    elif isinstance(error, ConnectionRefusedError | FileNotFoundError):
        what = CONNECTION_REFUSED
    else:
        what = str(error) or type(error).__name__
    is_permanent = isinstance(error, ssl.SSLCertVerificationError | hiredis.ProtocolError | WrongServerError)
    is_busy = isinstance(error, QueuedError)
    failure = StoreError(f"{address}: {what}", transient=not is_permanent, overloaded=is_busy)
    failure.was_sent = not isinstance(error, ConnectionRefusedError | FileNotFoundError | gaierror | WrongServerError)
    failure.__cause__ = error
    return failure
