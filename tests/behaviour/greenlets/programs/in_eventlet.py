"""Make a client under eventlet, which is refused. Usage: in_eventlet ORDER.

ORDER is patched-first, or imported-first: then a client is made before patching, too.
"""

from __future__ import annotations

import sys
import warnings

warnings.simplefilter("ignore")  # eventlet's own: it is deprecated
import eventlet  # noqa: E402

if sys.argv[1] == "patched-first":
    eventlet.monkey_patch()
from lockstead import DistributedLock, UnsupportedError  # noqa: E402

early = DistributedLock("memory://") if sys.argv[1] == "imported-first" else None
if sys.argv[1] == "imported-first":
    eventlet.monkey_patch()


def expect_refusal(use: object) -> None:
    try:
        use()  # type: ignore[operator]
    except UnsupportedError as error:
        assert "gevent" in str(error), error
        assert "eventlet" in str(error), error
    else:
        raise AssertionError("it went on under eventlet")


for url in ("memory://", "sqlite://", "redis://localhost", "postgresql://localhost"):
    expect_refusal(lambda url=url: DistributedLock(url))
if early is not None:
    expect_refusal(lambda: early.acquire("job"))
print("done")
