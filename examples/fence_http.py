"""An HTTP service refuses the late request of a client whose lease has expired.

Run it: python examples/fence_http.py
"""

from __future__ import annotations

from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from lockstead import DistributedLock, FenceGate, InvalidInputError, LockHandle, StaleFenceError
from lockstead.fencing import FENCE_HEADER, parse_fence


class Service(BaseHTTPRequestHandler):
    """Documents that are written by PUT, under a fence."""

    gate = FenceGate(max_resources=100_000)
    documents: dict[str, bytes] = {}  # noqa: RUF012 - shared by all requests

    def do_PUT(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            with self.gate.checked(self.path, parse_fence(self.headers[FENCE_HEADER])):
                self.documents[self.path] = text
        except StaleFenceError as error:
            self.answer(412, str(error))  # a precondition failed: the client must not repeat it
        except InvalidInputError as error:
            self.answer(400, str(error))
        else:
            self.answer(200, "written")

    def answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: this program prints what happens."""


def put(port: int, text: str, handle: LockHandle) -> int:
    connection = HTTPConnection("localhost", port, timeout=10)
    try:
        connection.request("PUT", "/ledger", text, {FENCE_HEADER: str(handle.fence)})
        response = connection.getresponse()
        print(f"{text}: {response.status}, {response.read().decode()}")
        return response.status
    finally:
        connection.close()


with ThreadingHTTPServer(("localhost", 0), Service) as server, DistributedLock("memory://") as locks:
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        # Without renewal the lease expires, as if its holder had been paused; the holder continues without a check.
        paused = locks.acquire("ledger", ttl=0.2, renew=False)
        assert put(server.server_port, "the first holder, in time", paused) == 200
        with locks.lock("ledger", timeout=30) as successor:
            assert put(server.server_port, "the next holder", successor) == 200
            assert put(server.server_port, "the first holder, too late", paused) == 412
    finally:
        server.shutdown()

assert Service.documents == {"/ledger": b"the next holder"}
