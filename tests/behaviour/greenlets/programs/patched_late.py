"""Make a client, patch the standard library, then use the client. Usage: patched_late URL."""

from __future__ import annotations

import sys
import threading
import warnings

from lockstead import DistributedLock, UnsupportedError

locks = DistributedLock(sys.argv[1])
elections = [locks.election("leader") for _ in range(2)]

warnings.simplefilter("ignore")  # gevent warns that ssl was imported before it
from gevent import monkey  # noqa: E402

monkey.patch_all()

for use in (
    lambda: locks.acquire("job", timeout=1),
    lambda: locks.try_acquire("job"),
    lambda: locks.multi_lock(["job", "other"], timeout=1).__enter__(),
    lambda: elections[0].campaign(timeout=1),
    elections[1].start,
):
    try:
        use()
    except UnsupportedError as error:
        assert "patch first" in str(error), error
    else:
        raise AssertionError(f"{use} went on with threads of another kind")

with DistributedLock(sys.argv[1]) as later:
    handles = [later.acquire("job", timeout=5)]
    thread = threading.Thread(target=lambda: handles.append(later.acquire("job", timeout=5)))
    thread.start()
    handles[0].release()
    thread.join()
    assert handles[1].is_held
print("done")
