"""Run logs as pages for one person, on this host alone: `egs dashboard`. The standard library's server, GET only.

The address has a secret in its path: other users of the host reach the port, too. A page of another site that has the
browser ask for it under a name of its own (DNS rebinding) knows no secret either, and is refused by its Host.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path

from egs_core.cost.prices import Prices
from egs_core.dashboard.log_pages import Seen, TeamOf, run_page, seen, workload_page
from egs_core.errors import InputError
from egs_core.report.html import tag
from egs_core.report.page import POLICY as REPORT_POLICY
from egs_core.report.page import render_page
from egs_core.runlog.io import Run, read_run

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
ASSETS = {"page.css": "text/css", "log.js": "text/javascript"}
Answer = tuple[int, str, str, str]  # status, type, policy, text


class Logs:
    """The logs, read again when their files have changed: a run that goes on is shown as far as it has come."""

    def __init__(self, paths: Sequence[Path], prices: Prices | None = None, team_of: TeamOf = str) -> None:
        """Raises InputError for what cannot be read."""
        self._paths, self._prices, self._team_of = list(paths), prices, team_of
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[str, Run, Seen]] = {}
        self.seen()

    def version(self) -> str:
        """Another one whenever a file is."""
        return "-".join(map(_stamp, self._paths))

    def seen(self) -> list[Seen]:
        return [found for _, _, found in self._read()]

    def runs(self) -> list[Run]:
        return [run for _, run, _ in self._read()]

    def _read(self) -> list[tuple[str, Run, Seen]]:
        with self._lock:
            for path in self._paths:
                stamp = _stamp(path)
                if path not in self._kept or self._kept[path][0] != stamp:
                    run = read_run(path)
                    self._kept[path] = stamp, run, seen(run, self._prices, self._team_of)
            return [self._kept[path] for path in self._paths]


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "gone"
    return f"{found.st_size:x}.{found.st_mtime_ns:x}"


def answer(logs: Logs, home: str, path: str) -> Answer:
    """What is at a path, of which the caller knows the secret."""
    parts = path.removeprefix(home).strip("/").split("/")
    try:
        match parts:
            case [""]:
                return _html(run_page(home, logs.seen(), 0, logs.version()))
            case ["run", number]:
                return _html(run_page(home, logs.seen(), _number(number), logs.version()))
            case ["run", number, "workload", which]:
                return _html(workload_page(home, logs.seen(), _number(number), _number(which), logs.version()))
            case ["report"]:
                return 200, "text/html", REPORT_POLICY, render_page(logs.runs())
            case ["version"]:
                return 200, "text/plain", POLICY, logs.version()
            case [name] if name in ASSETS:
                text = (resources.files("egs_core.dashboard") / name).read_text(encoding="utf-8")
                return 200, ASSETS[name], POLICY, text
    except (ValueError, IndexError):
        pass
    except InputError as error:
        return _html(_said(str(error)), 503)
    return _html(_said("There is no such page."), 404)


def serve(logs: Logs, port: int, ready: Callable[[str], None]) -> None:
    """Until Ctrl-C. port: 0 for any that is free; ready: is told the address. Raises InputError where there is none."""
    home = f"/dashboard/{secrets.token_urlsafe(16)}"
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), _handler(logs, home))
    except (OSError, OverflowError) as error:
        raise InputError("--port", f"127.0.0.1:{port} cannot be had: {error}", "another number, or 0 for any") from None
    with server:
        ready(f"http://127.0.0.1:{server.server_port}{home}")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _handler(logs: Logs, home: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # a connection that says nothing

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").partition(":")[0]
            asked = self.path.partition("?")[0]
            if host not in ("127.0.0.1", "localhost"):
                found = _html(_said("This address is for this host alone."), 421)
            elif not secrets.compare_digest(asked[: len(home)].encode(), home.encode()):
                found = _html(_said("Open the whole address that the command has printed."), 403)
            else:
                found = answer(logs, home, asked)
            self._send(*found)

        def _send(self, status: int, kind: str, policy: str, text: str) -> None:
            body = text.encode(errors="replace")
            self.send_response(status)
            headers = {
                "Content-Type": f"{kind}; charset=utf-8",
                "Content-Length": str(len(body)),
                "Content-Security-Policy": policy,
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
                "Cross-Origin-Resource-Policy": "same-origin",
                "Cache-Control": "no-store",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return "EGS"

        def log_message(self, format: str, *args: object) -> None:
            pass  # the terminal is the command's

    return Handler


def _number(text: str) -> int:
    """Raises ValueError for what is none."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError
    return int(text)


def _html(text: str, status: int = 200) -> Answer:
    return status, "text/html", POLICY, text


def _said(words: str) -> str:
    head = tag("head", tag("meta", charset="utf-8"), tag("title", "EGS"))
    body = tag("body", tag("main", tag("h1", "EGS"), tag("p", words)))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
