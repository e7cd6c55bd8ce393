"""Say what went wrong at a server, and whether asking again may help."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from typing import Any

import hiredis

from leasehold.errors import StoreError
from leasehold.stores._pipeline import QueuedError
from leasehold.stores.redis._address import Address

_TRANSIENT = {"LOADING", "BUSY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "UNBLOCKED"}
_ADVICE = {
    "WRONGPASS": "check user and password: redis://USER:PASSWORD@HOST",
    "NOAUTH": "it wants a password: redis://:PASSWORD@HOST",
    "NOPERM": "the documentation of this store lists the rights its user needs",
    "READONLY": "use its primary, or redis+sentinel:// or redis+cluster://, which find it",
    "OOM": "raise maxmemory, or make room",
    "MISCONF": "mend the server's persistence",
    "NOREPLICAS": "its min-replicas-to-write asks for more replicas than are connected",
    "LOADING": "it has just started",
}
_CODE = re.compile(rf"\b({'|'.join([*_TRANSIENT, *_ADVICE, 'NOSCRIPT', 'MOVED', 'ASK'])})\b")


FAILURES = (OSError, UnicodeError, hiredis.ProtocolError)
"""What ends a connection."""


def code_of(error: Exception) -> str:
    """Find the code of an error reply; Redis before 7 hides that of a script's in the middle of a sentence."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def refused(address: Address, error: Exception) -> StoreError:
    """Translate an error reply: nothing was done, unless a script failed that should not: that counts as no answer."""
    code = code_of(error)
    text = str(error).removeprefix("ERR ")
    if code == "" and "AUTH" in text:
        code = "WRONGPASS"
    advice = _ADVICE.get(code, "")
    is_transient = code in _TRANSIENT or (code == "" and "user_script" in text) or "max number of clients" in text
    failure = StoreError(f"{address}: {text}{advice and f' ({advice})'}", transient=is_transient)
    failure.__cause__ = error
    return failure


def check_all(address: Address, replies: Iterable[Any]) -> None:
    """Raise the first error among replies."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise refused(address, reply)


def unanswered(address: Address, error: BaseException) -> StoreError:
    """Translate a failure of the connection: whether anything was done is unknown."""
    if isinstance(error, ssl.SSLError):
        what = f"TLS: {error.reason or error} (ssl_ca_certs names the authority to trust)"
    elif isinstance(error, hiredis.ProtocolError):
        what = f"this is no Redis server, or it speaks TLS (rediss://): {error}"
    elif isinstance(error, TimeoutError):
        what = str(error) or "no answer in time"
    elif isinstance(error, ConnectionRefusedError | FileNotFoundError):
        what = "connection refused; is the server running there?"
    else:
        what = str(error) or type(error).__name__
    is_hopeless = isinstance(error, ssl.SSLCertVerificationError | hiredis.ProtocolError)
    is_busy = isinstance(error, QueuedError)
    failure = StoreError(f"{address}: {what}", transient=not is_hopeless, overloaded=is_busy)
    failure.__cause__ = error
    return failure
