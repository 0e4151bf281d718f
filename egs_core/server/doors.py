"""Where a server listens over TCP, and that no token is sent in the clear between hosts."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
import stat
from pathlib import Path

import msgspec

from egs_core.errors import InputError

WIDER = "--tls-cert and --tls-key; or --behind-proxy, where a proxy on this host or network adds TLS"


class Door(msgspec.Struct, frozen=True):
    """A TCP address. tls_cert, tls_key: files, in PEM; behind_proxy: something else does TLS, and says so."""

    host: str = "127.0.0.1"
    port: int = 0
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False

    def check(self) -> None:
        """Raises InputError for an address at which tokens would be read by all between."""
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "--tls-key" if self.tls_key is None else "--tls-cert"
            raise InputError(missing, "is missing: a certificate and its key go together")
        if self.tls_cert is not None or self.behind_proxy:
            return
        try:
            is_local = self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            raise InputError("--host", f"{self.host!r} is no address of this host", "127.0.0.1 or ::1") from None
        if not is_local:
            raise InputError("--host", f"{self.host} is no loopback address, and there is no TLS", WIDER)

    def listen(self) -> socket.socket:
        """Raises InputError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            family, *_, address = found[0]
            listening = socket.socket(family, socket.SOCK_STREAM)
        except (OSError, OverflowError) as error:
            raise InputError(f"--host {self.host} --port {self.port}", f"cannot be used: {error}") from None
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            listening.listen(128)
        except OSError as error:
            listening.close()
            hint = "choose another, or 0 for any"
            if error.errno == errno.EADDRINUSE:
                hint = f"by another EGS server? Then `EGS_URL={self.url(self.port)} egs ps` asks it; else {hint}"
            raise InputError(f"--port {self.port}", f"cannot be used: {error.strerror}", hint) from None
        return listening

    def url(self, port: int) -> str:
        """What a client of this host connects to. port: that it has got."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.tls_cert else 'http'}://{shown}:{port}"

    def tls(self) -> ssl.SSLContext | None:
        """None without a certificate. Raises InputError."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.tls_key.stat().st_mode & stat.S_IROTH:
                raise InputError(f"--tls-key {self.tls_key}", "everyone may read it", f"chmod 600 {self.tls_key}")
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")  # else it would be asked for
        except ssl.SSLError as error:
            problem = f"cannot be used: {error.reason or 'no certificate and its key, in PEM, without a passphrase'}"
            raise InputError(f"--tls-cert {self.tls_cert} --tls-key {self.tls_key}", problem) from None
        except OSError as error:
            raise InputError(f"--tls-cert {self.tls_cert}", f"cannot be read: {error.strerror}") from None
        return context
