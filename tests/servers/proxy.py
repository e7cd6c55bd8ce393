"""The kit's fault proxy in front of a server of ours."""

from __future__ import annotations

from typing import Any, Protocol

from lockstead.testing import proxy
from lockstead.testing.proxy import Dialect
from tests.servers.ports import HOST, Port
from tests.servers.tls import Authority


class Upstream(Protocol):
    """What a proxy can stand in front of."""

    @property
    def port(self) -> int: ...

    @property
    def dialect(self) -> type[Dialect]: ...

    def url_at(self, port: int, tls: Authority | None = None) -> str: ...


class FaultProxy(proxy.FaultProxy):
    """With `tls`, it speaks TLS to the clients, for Redis servers that do not.

    Commands are not distinguished on connections that subscribe.
    """

    def __init__(self, server: Upstream, *, tls: Authority | None = None) -> None:
        self.server: Any = server
        self._authority = tls
        self._reserved = Port()
        super().__init__(
            (HOST, server.port),
            dialect=server.dialect,
            port=self._reserved.number,
            tls=tls.server_context() if tls else None,
        )

    @property
    def url(self) -> str:
        """The server's URL, through here."""
        return str(self.server.url_at(self.port, self._authority))

    def close(self) -> None:
        super().close()
        self._reserved.close()
