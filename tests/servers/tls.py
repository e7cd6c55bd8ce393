"""Certificates for the loopback, made at run time."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    """A certificate authority, and a certificate of it for 127.0.0.1 and localhost, in files of a directory."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        self.authorities = directory / "ca.pem"
        self.certificate = directory / "server.pem"
        self.key = directory / "server.key"
        authority.cert_pem.write_to_path(self.authorities)
        server.cert_chain_pems[0].write_to_path(self.certificate)
        server.private_key_pem.write_to_path(self.key)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context
