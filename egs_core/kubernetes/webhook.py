"""The admission webhook, in the controller's process: it gates a pod only while the controller's loop goes round.

It never refuses a pod. What it cannot read, it lets pass as it is; and where it is not there, or takes longer than a
second, the API server does the same (`failurePolicy: Ignore`).
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from egs_core.kubernetes import gpu_free, names
from egs_core.kubernetes.admission import Patch, Rules, is_served, patch_of, review_of
from egs_core.kubernetes.certificate import RENEW_S, load_into, new_certificate
from egs_core.kubernetes.cluster import (
    CLAIM_TEMPLATES,
    JSON_PATCH,
    LIMIT_RANGES,
    PRIORITY_CLASSES,
    WEBHOOKS,
    ApiError,
    Cluster,
)
from egs_core.kubernetes.faults import faults_of, one_line
from egs_core.kubernetes.objects import Object, part, text
from egs_core.kubernetes.tiers import claimed

MOST_BYTES = 4 << 20
LOOK_S = 30.0
MADE_S = 0.3
"""So long it is waited for a template of claims, or for limit ranges: of the second that the API server waits for an
answer."""
CA = "/webhooks/0/clientConfig/caBundle"


class Webhook:
    """See the module. healthy: whether pods may be gated now; hosts: names under which the API server calls it; say:
    hears a line for each pod that was changed, and for what an administrator should know."""

    def __init__(
        self,
        cluster: Cluster,
        rules: Rules,
        hosts: Sequence[str],
        healthy: Callable[[], bool],
        say: Callable[[str], None],
        address: tuple[str, int] = ("", 9443),
    ) -> None:
        self._cluster, self._rules, self._hosts, self._healthy, self._say = cluster, rules, hosts, healthy, say
        self._has_class = False
        self._said = ""
        self._ended = threading.Event()
        self._trusted = self._wanted = b""
        self._renew_at = float("-inf")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        hook = self

        class Handler(_Handler):
            webhook = hook

        self._renew()
        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        # the handshake is the connection's own thread's: one that says nothing is in nobody's way
        self._server.socket = self._context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = int(self._server.server_address[1])

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="egs-webhook", daemon=True).start()
        threading.Thread(target=self._look, name="egs-webhook-look", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def is_healthy(self) -> bool:
        return self._healthy() and not self._ended.is_set()

    def answer(self, review: dict[str, Any]) -> dict[str, Any]:
        """To an AdmissionReview."""
        patch: Patch = []
        warnings: list[str] = []
        request = part(review, "request")
        if self.is_healthy and text(request, "operation") == "CREATE":
            rules = self._rules if self._has_class else Rules(self._rules.release_by_s)
            pod = part(request, "object")
            patch = patch_of(pod, rules, self._cluster.now())
            more, about = self._asked_for(pod, text(request, "namespace"), is_tried=bool(request.get("dryRun")))
            patch += more
            warnings = faults_of(pod) if is_served(pod) else []
            if patch and not request.get("dryRun"):
                meta = part(pod, "metadata")
                name = text(meta, "name") or text(meta, "generateName")
                paths = ", ".join(str(one["path"]) for one in patch)
                said = f"{paths}{about}{''.join(f'; {one}' for one in warnings)}"
                self._say(one_line(f"pod {text(request, 'namespace')}/{name}: {said}"))
        return review_of(review, patch, warnings)

    def _asked_for(self, pod: Object, namespace: str, *, is_tried: bool) -> tuple[Patch, str]:
        """What needs a request of its own; whatever becomes of that, the pod has its gate."""
        try:
            claim, about = self._claim(pod, namespace, is_tried=is_tried)
            return (claim, about) if claim else (self._free(pod, namespace), "")
        except Exception as error:
            self._note(f"webhook: {namespace}: {type(error).__name__}: {error}: a pod's devices stay as they are")
            return [], ""

    def _claim(self, pod: Object, namespace: str, *, is_tried: bool) -> tuple[Patch, str]:
        """A claim in the place of the pod's limit, once its template is there; none where that cannot be made."""
        found = claimed(pod, self._rules.claims) if self._rules.claims and is_served(pod) else None
        if found is None:
            return [], ""
        try:
            if not is_tried:
                self._cluster.create(CLAIM_TEMPLATES, found.template, namespace, MADE_S)
        except ApiError as error:
            if error.status != 409:  # it is there
                self._note(f"claims: {namespace}: {error}: the limit stays")
                return [], ""
        return found.patch, f" ({found.about})"

    def _free(self, pod: Object, namespace: str) -> Patch:
        """Without a GPU that its task does not need; as it is where its namespace may take no such pod."""
        found = gpu_free.given(pod) if is_served(pod) else []
        if not found:
            return []
        try:
            ranges = self._cluster.list(LIMIT_RANGES, namespace, timeout_s=MADE_S)[0]
        except ApiError as error:
            self._note(f"limit ranges: {namespace}: {error}: a GPU that a task does not need stays")
            return []
        return [] if gpu_free.are_needed(found, ranges) else gpu_free.patch_of(found)

    # --- its certificate, and the class that it writes ---

    def _look(self) -> None:
        while not self._ended.is_set():
            try:
                if time.monotonic() >= self._renew_at:
                    self._renew()
                self._tell_certificate()
                self._look_for_class()
                self._note("")
            except Exception as error:  # pods pass as they are meanwhile
                self._note(f"webhook: {error}")
            self._ended.wait(LOOK_S)

    def _renew(self) -> None:
        """Another certificate; connections get it when the API server trusts it too."""
        certificate, key = new_certificate(self._hosts)
        if self._trusted:
            self._tell(self._trusted + certificate)
        load_into(self._context, certificate, key)
        self._wanted, self._renew_at = certificate, time.monotonic() + RENEW_S

    def _tell_certificate(self) -> None:
        """It is written again where somebody has applied the manifests again, which have none."""
        found = self._cluster.get(WEBHOOKS, names.CONTROLLER)
        there = text(part((found.get("webhooks") or [{}])[0], "clientConfig"), "caBundle")
        if base64.b64decode(there) != self._wanted and self._healthy():
            self._tell(self._wanted)
        self._trusted = self._wanted

    def _tell(self, certificates: bytes) -> None:
        body = [{"op": "add", "path": CA, "value": base64.b64encode(certificates).decode()}]
        self._cluster.patch(WEBHOOKS, names.CONTROLLER, body, how=JSON_PATCH)

    def _look_for_class(self) -> None:
        self._has_class = False
        if self._rules.priority_class:
            try:
                self._cluster.get(PRIORITY_CLASSES, self._rules.priority_class)
                self._has_class = True
            except ApiError as error:
                raise EgsMissing(f"priority class {self._rules.priority_class} is not written: {error}") from None

    def _note(self, problem: str) -> None:
        if problem and problem != self._said:
            self._say(problem)
        self._said = problem


class EgsMissing(Exception):
    """Something that is written is not in the cluster."""


class _Handler(BaseHTTPRequestHandler):
    webhook: Webhook
    timeout = 10.0
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: each rewrite has its line."""

    def do_GET(self) -> None:
        """Ready means leading: what is not ready is not called."""
        code, said = (200, b"leads") if self.webhook.is_healthy else (503, b"does not lead")
        self._send(code, said)

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
            review = json.loads(self.rfile.read(length)) if 0 < length <= MOST_BYTES else None
        except ValueError:
            review = None
        if not isinstance(review, dict):
            self.close_connection = True
            self._send(400, b"no AdmissionReview")
            return
        try:
            answer = self.webhook.answer(review)
        except Exception:  # whatever it is, the pod passes as it is
            answer = review_of(review, [])
        self._send(200, json.dumps(answer).encode())

    def _send(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ssl.SSLError):  # who hangs up, or speaks no TLS
            self.close_connection = True
