"""Wake processes that do not listen until no socket keeps any more. Usage: full_socket."""

from __future__ import annotations

import secrets
import socket

import gevent

from lockstead.runtimes.threads import ThreadRuntime
from lockstead.stores.sqlite.notify import NotifySocket

addresses = [f"lockstead-test/{secrets.token_hex(8)}" for _ in range(100)]
sockets = []
for address in addresses:
    sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    sockets[-1].bind(f"\0{address}")
sender = NotifySocket(ThreadRuntime(), listens=True)
sender.bind()
with gevent.Timeout(10):
    for _ in range(20):
        for address in addresses:
            sender.notify("owner" * 40, address)
print("done")
