"""An emulated API server of Kubernetes, over HTTP: lists in pages, watches, conflicts, patches of gates. No real one.

It checks nothing of an object but that a deadline comes no later, and schedules nothing: tests bind and end pods. What
`tests/cluster` needs is a real one.
"""

from __future__ import annotations

import copy
import json
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from egs_core.kubernetes.objects import moment

LIMIT_S = 120.0
GATE = "egs.io/order"


class EmulatedApi:
    """Objects by kind and name. gone: how many of the next watches are answered with 410; cut: ends all watches;
    conflicts: how many of the next patches are refused with 409; lost: of how many what was done is not answered.
    refused: how many of the next objects are not made, with 500, as where a webhook does not answer; ahead_s: of the
    true time is its clock, by which objects are made and answers dated; absent,
    forbidden: kinds that it knows nothing of, or lets nobody read; apart: those that may be read in one namespace, not
    in all together. asked: methods of all requests."""

    def __init__(self, folder: Path) -> None:
        self.changed = threading.Condition()
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self.log: list[tuple[int, str, str, dict[str, Any]]] = []
        self.version = 1
        self.gone = 0
        self.cuts = self.conflicts = self.lost = 0
        self.refused = 0
        self.ahead_s = 0.0
        self.down = False
        self.absent: set[str] = set()
        self.forbidden: set[str] = set()
        self.apart: set[str] = set()
        self.asked: set[str] = set()
        self.patches: list[tuple[str, Any]] = []
        self.deleted: list[str] = []
        api = self

        class Handler(_Handler):
            server_api = api

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.kubeconfig = folder / "kubeconfig"
        address = f"http://127.0.0.1:{self._server.server_address[1]}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "emulated",
            "clusters": [{"name": "emulated", "cluster": {"server": address}}],
            "users": [{"name": "emulated", "user": {}}],
            "contexts": [{"name": "emulated", "context": {"cluster": "emulated", "user": "emulated"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def close(self) -> None:
        self.cut()
        self._server.shutdown()
        self._server.server_close()

    # --- what tests do ---

    def add(self, plural: str, raw: dict[str, Any]) -> dict[str, Any]:
        made = copy.deepcopy(raw)
        meta = made["metadata"]
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", moment(self.now()))
        self._write(plural, made, "ADDED")
        return made

    def now(self) -> float:
        """Unix time, by its clock."""
        return time.time() + self.ahead_s

    def change(self, plural: str, name: str, act: Callable[[dict[str, Any]], None]) -> None:
        with self.changed:
            key = next(key for key in self.objects[plural] if key[1] == name)
            made = copy.deepcopy(self.objects[plural][key])
        act(made)
        self._write(plural, made, "MODIFIED")

    def remove(self, plural: str, name: str) -> None:
        with self.changed:
            key = next(key for key in self.objects[plural] if key[1] == name)
            self._drop(plural, key)

    def bind(self, name: str, node: str) -> None:
        self.change("pods", name, lambda pod: pod["spec"].update(nodeName=node))

    def end(self, name: str, phase: str = "Succeeded") -> None:
        self.change("pods", name, lambda pod: pod.setdefault("status", {}).update(phase=phase))

    def all(self, plural: str) -> dict[str, dict[str, Any]]:
        with self.changed:
            return {key[1]: copy.deepcopy(one) for key, one in self.objects.get(plural, {}).items()}

    def gated(self) -> set[str]:
        found = self.all("pods").items()
        return {name for name, pod in found if any(g["name"] == GATE for g in pod["spec"].get("schedulingGates", ()))}

    def opened(self) -> list[str]:
        """Names of pods in the order in which their gates were opened."""
        with self.changed:
            found = [(name, body) for name, body in self.patches if not isinstance(body, list)]
            return [name for name, body in found if "schedulingGates" in (body.get("spec") or {})]

    def cut(self) -> None:
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def until(self, what: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Waits for a condition."""
        end = time.monotonic() + limit_s
        while not what():
            with self.changed:
                assert time.monotonic() < end, f"it did not come to that: opened {self.opened()}, gated {self.gated()}"
                self.changed.wait(0.1)

    # --- its state ---

    def _write(self, plural: str, made: dict[str, Any], kind: str) -> None:
        with self.changed:
            self.version += 1
            made["metadata"]["resourceVersion"] = str(self.version)
            key = (made["metadata"].get("namespace", ""), made["metadata"]["name"])
            self.objects.setdefault(plural, {})[key] = made
            self.log.append((self.version, plural, kind, copy.deepcopy(made)))
            self.changed.notify_all()

    def _drop(self, plural: str, key: tuple[str, str]) -> None:
        made = self.objects[plural].pop(key)
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, plural, "DELETED", made))
        self.deleted.append(f"{plural}/{key[1]}")
        self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_api: EmulatedApi

    def log_message(self, format: str, *args: object) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string(self.server_api.now() if timestamp is None else timestamp)

    def do_GET(self) -> None:
        plural, namespace, name, query = self._asked()
        api = self.server_api
        if plural in api.absent | api.forbidden or (plural in api.apart and not namespace):
            self._refuse(404 if plural in api.absent else 403, "not found, or not allowed")
        elif name:
            found = api.objects.get(plural, {}).get((namespace, name))
            self._answer(200, found) if found else self._refuse(404, "not found")
        elif query.get("watch"):
            self._watch(plural, namespace, query)
        else:
            with api.changed:
                kept = [one for key, one in sorted(api.objects.get(plural, {}).items()) if namespace in ("", key[0])]
                kept = [one for one in kept if _selects(query.get("labelSelector", ""), one)]
                first, limit = int(query.get("continue", 0)), int(query.get("limit", 1000))
                meta = {"resourceVersion": str(api.version)}
                if first + limit < len(kept):
                    meta["continue"] = str(first + limit)
                self._answer(200, {"metadata": meta, "items": kept[first : first + limit]})

    def do_POST(self) -> None:
        plural, namespace, _, _ = self._asked()
        body = self._body()
        if namespace:
            body["metadata"].setdefault("namespace", namespace)
        if plural == "selfsubjectreviews":
            self._answer(201, {"status": {"userInfo": {"username": "ann"}}})
        elif plural in self.server_api.absent | self.server_api.forbidden:
            self._refuse(404 if plural in self.server_api.absent else 403, "not found, or not allowed")
        elif self.server_api.refused:
            self.server_api.refused -= 1
            self._refuse(500, "failed calling webhook")
        elif (namespace, body["metadata"]["name"]) in self.server_api.objects.get(plural, {}):
            self._refuse(409, "already exists")
        else:
            self._answer(201, self.server_api.add(plural, body))

    def do_PUT(self) -> None:
        plural, namespace, name, _ = self._asked()
        body, api = self._body(), self.server_api
        with api.changed:
            found = api.objects.get(plural, {}).get((namespace, name))
            if found is None:
                self._refuse(404, "not found")
            elif body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                self._refuse(409, "the object has been modified")
            else:
                api._write(plural, body, "MODIFIED")
                self._answer(200, body)

    def do_PATCH(self) -> None:
        plural, namespace, name, query = self._asked()
        body, api = self._body(), self.server_api
        with api.changed:
            found = api.objects.get(plural, {}).get((namespace, name))
            if found is None:
                self._refuse(404, "not found")
                return
            stated = {} if isinstance(body, list) else body.get("metadata", {})
            if stated.get("uid", found["metadata"]["uid"]) != found["metadata"]["uid"]:
                self._refuse(409, "the UID in the precondition does not match")
                return
            if (
                stated.get("resourceVersion", found["metadata"]["resourceVersion"])
                != found["metadata"]["resourceVersion"]
            ):
                self._refuse(409, "the object has been modified")
                return
            made = _replaced(found, body) if isinstance(body, list) else _merged(found, body)
            if query.get("dryRun"):
                self._answer(200, made)
                return
            if api.conflicts:
                api.conflicts -= 1
                self._refuse(409, "the object has been modified")
                return
            if _is_put_off(found, made):
                self._refuse(422, "activeDeadlineSeconds: must be less than or equal to previous value")
                return
            api.patches.append((name, body))
            api._write(plural, made, "MODIFIED")
            if api.lost:
                api.lost -= 1
                self.close_connection = True
                return
            self._answer(200, made)

    def do_DELETE(self) -> None:
        plural, namespace, name, _ = self._asked()
        options = self._body() if int(self.headers.get("Content-Length", 0)) else {}  # a uid: names are unique here
        with self.server_api.changed:
            if (namespace, name) in self.server_api.objects.get(plural, {}):
                if not options.get("dryRun"):
                    self.server_api._drop(plural, (namespace, name))
                self._answer(200, {"status": "Success"})
            else:
                self._refuse(404, "not found")

    def _watch(self, plural: str, namespace: str, query: dict[str, str]) -> None:
        api, version = self.server_api, int(query["resourceVersion"])
        end = time.monotonic() + float(query.get("timeoutSeconds", 60))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with api.changed:
            cuts = api.cuts
            if api.gone:
                api.gone -= 1
                status = {"code": 410, "message": "too old resource version"}
                self._chunk({"type": "ERROR", "object": status})
                end = 0.0
        while time.monotonic() < end:
            with api.changed:
                new = [one for one in api.log if one[0] > version and one[1] == plural]
                if api.cuts != cuts:
                    self.close_connection = True
                    return  # half an answer: the connection breaks
                if not new:
                    api.changed.wait(0.1)
            for number, _, kind, raw in new:
                version = number
                if namespace in ("", raw["metadata"].get("namespace")):
                    is_kept = _selects(query.get("labelSelector", ""), raw)
                    self._chunk({"type": kind if is_kept else "DELETED", "object": raw})
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    def _asked(self) -> tuple[str, str, str, dict[str, str]]:
        """Kind, namespace, name and query of a request."""
        if self.server_api.down:
            self.close_connection = True
            raise ConnectionAbortedError
        self.server_api.asked.add(self.command)
        parts = urlsplit(self.path)
        words = parts.path.strip("/").split("/")
        words = words[2:] if words[0] == "api" else words[3:]
        namespace = ""
        if words[0] == "namespaces" and len(words) > 2:
            namespace, words = words[1], words[2:]
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        return words[0], namespace, words[1] if len(words) > 1 else "", query

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _body(self) -> Any:
        found: Any = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        return found

    def _refuse(self, code: int, message: str) -> None:
        self._answer(code, {"kind": "Status", "code": code, "message": message})

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _is_put_off(found: dict[str, Any], made: dict[str, Any]) -> bool:
    """Kubernetes lets nobody put a pod's deadline off, or take it away."""
    before, after = (one.get("spec", {}).get("activeDeadlineSeconds") for one in (found, made))
    return before is not None and (after is None or after > before)


def _selects(selector: str, raw: dict[str, Any]) -> bool:
    """Whether a selector of `key`, `key=value` and `key!=value` takes an object."""
    labels = raw["metadata"].get("labels") or {}
    for one in filter(None, selector.split(",")):
        key, is_not, value = one.partition("!=") if "!=" in one else one.partition("=")
        if (labels.get(key) == value) == (is_not == "!=") if is_not else key not in labels:
            return False
    return True


def _replaced(found: dict[str, Any], body: list[dict[str, Any]]) -> dict[str, Any]:
    """A JSON patch that adds or replaces fields."""
    made = copy.deepcopy(found)
    for one in body:
        *way, last = one["path"].split("/")[1:]
        place: Any = made
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        place[last] = one["value"]
    return made


def _merged(found: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """A merge patch; of a list whose members say `$patch: delete`, those of that name go."""
    made = copy.deepcopy(found)
    for key, value in body.items():
        if isinstance(value, dict):
            made[key] = _merged(made.get(key) or {}, value)
        elif isinstance(value, list) and value and isinstance(value[0], dict) and value[0].get("$patch") == "delete":
            gone = {one["name"] for one in value}
            made[key] = [one for one in made.get(key) or [] if one["name"] not in gone]
        elif value is None:
            made.pop(key, None)
        else:
            made[key] = value
    return made
