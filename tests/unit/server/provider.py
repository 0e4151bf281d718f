"""A real OpenID Connect provider, as small as one can be: its configuration and its keys over HTTP, and tokens that it
signs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm


class RealProvider:
    """issuer: its address; asked: paths that were read; answers: what a path is answered with instead."""

    def __init__(self) -> None:
        provider = self
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.keys: dict[str, ec.EllipticCurvePrivateKey] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                status, body = provider.answers.get(self.path) or (200, provider.page(self.path))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing on standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}/realm"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.new_key("first")

    def new_key(self, name: str) -> None:
        self.keys[name] = ec.generate_private_key(ec.SECP256R1())

    def page(self, path: str) -> bytes:
        if path == "/realm/.well-known/openid-configuration":
            return json.dumps({"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}).encode()
        keys = [{**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": name} for name, key in self.keys.items()]
        return json.dumps({"keys": [*keys, {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}]}).encode()

    def token(self, key: str = "first", **claims: Any) -> str:
        """Signed; claims of None are left out."""
        now = time.time()
        usual = {"iss": self.issuer, "aud": "egs", "sub": "4711", "email": "ann@example.org", "exp": now + 600}
        told = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(told, self.keys[key], algorithm="ES256", headers={"kid": key})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


@contextmanager
def real_provider() -> Iterator[RealProvider]:
    provider = RealProvider()
    try:
        yield provider
    finally:
        provider.close()
