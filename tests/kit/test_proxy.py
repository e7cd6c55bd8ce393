"""The network that can be bad, as it is offered to authors of stores."""

from __future__ import annotations

import gc
import socket

from lockstead.testing.proxy import HOST, FaultProxy


def test_a_client_that_is_being_accepted_when_the_proxy_closes_is_disconnected() -> None:
    """What stays open is reported by pytest when it is collected."""
    with socket.create_server((HOST, 0), backlog=100) as server:
        for _ in range(5):
            proxy = FaultProxy(server.getsockname())
            clients = [socket.create_connection(proxy.address) for _ in range(5)]
            proxy.close()
            for client in clients:
                client.close()
            gc.collect()
