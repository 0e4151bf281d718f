"""The API server, by the `kubernetes` client: plain objects in and out, a time-out on every request.

Only this module imports the client, so that all others can be used, and tested, without.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from egs_core.errors import EgsError, InputError
from egs_core.kubernetes.clock import ServerClock

TIMEOUT_S = 15.0
WATCH_S = 240
PAGE = 500
STRATEGIC, MERGE = "application/strategic-merge-patch+json", "application/merge-patch+json"
JSON_PATCH, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
TRIED = "?dryRun=All"
INSIDE = Path("/var/run/secrets/kubernetes.io/serviceaccount")
Body = dict[str, Any] | list[Any]


class Kind(msgspec.Struct, frozen=True):
    """A kind of object: where it is below the API server's root. namespaced: whether its objects are in namespaces."""

    root: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "") -> str:
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{where}/{self.plural}" + (f"/{name}" if name else "")


PODS, NODES = Kind("/api/v1", "pods"), Kind("/api/v1", "nodes", False)
NAMESPACES = Kind("/api/v1", "namespaces", False)
LEASES, CONFIG_MAPS = Kind("/apis/coordination.k8s.io/v1", "leases"), Kind("/api/v1", "configmaps")
VOLUME_CLAIMS = Kind("/api/v1", "persistentvolumeclaims")
_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS, LOCAL_QUEUES = Kind(_KUEUE, "workloads"), Kind(_KUEUE, "localqueues")
CLUSTER_QUEUES = Kind(_KUEUE, "clusterqueues", False)
ADMISSION_CHECKS = Kind(_KUEUE, "admissionchecks", False)
MULTIKUEUE_CONFIGS = Kind(_KUEUE, "multikueueconfigs", False)
MULTIKUEUE_CLUSTERS = Kind(_KUEUE, "multikueueclusters", False)
JOBS = Kind("/apis/batch/v1", "jobs")
WORKFLOWS = Kind("/apis/argoproj.io/v1alpha1", "workflows")
WHO_AM_I = Kind("/apis/authentication.k8s.io/v1", "selfsubjectreviews", False)
LIMIT_RANGES = Kind("/api/v1", "limitranges")
EVENTS = Kind("/api/v1", "events")
WEBHOOKS = Kind("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False)
PRIORITY_CLASSES = Kind("/apis/scheduling.k8s.io/v1", "priorityclasses", False)
_DRA = "/apis/resource.k8s.io/v1"
SLICES, DEVICE_CLASSES = Kind(_DRA, "resourceslices", False), Kind(_DRA, "deviceclasses", False)
CLAIMS, CLAIM_TEMPLATES = Kind(_DRA, "resourceclaims"), Kind(_DRA, "resourceclaimtemplates")


class ApiError(Exception):
    """The API server, or the way to it, said no. status: of HTTP; 0: there was no answer."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status or 'no answer'}: {said}")
        self.status = status


class Cluster:
    """A connection. kubeconfig: a file; None: the cluster in which this process runs, else the user's usual file.
    namespace: of who asks. clock: of this machine, Unix time."""

    def __init__(
        self, kubeconfig: Path | None = None, context: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        client, config = _client()
        configuration = client.Configuration()
        configuration.retries = 1
        try:
            if kubeconfig is None and _is_inside():
                config.load_incluster_config(client_configuration=configuration)
                self.namespace = (INSIDE / "namespace").read_text().strip()
            else:
                file = None if kubeconfig is None else str(kubeconfig)
                config.load_kube_config(file, context, client_configuration=configuration)
                contexts, current = config.list_kube_config_contexts(file)
                self.namespace = _namespace_of(contexts, current, context)
        except Exception as error:  # the client raises its own, YAML's and the file system's
            raise _no_cluster(kubeconfig, context, error) from None
        self.host = str(configuration.host)
        self._api = client.ApiClient(configuration)
        self._clock = ServerClock(clock)

    def close(self) -> None:
        self._api.close()

    def now(self) -> float:
        """Unix time by the API server's clock, as far as its answers have told it: what is written into objects, or
        compared with what they say, is of that clock."""
        return self._clock.now()

    def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any]:
        return self._call("GET", kind.path(namespace, name))

    def create(
        self, kind: Kind, body: dict[str, Any], namespace: str = "", timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        return self._call("POST", kind.path(namespace), body, read_s=timeout_s)

    def replace(self, kind: Kind, name: str, body: dict[str, Any], namespace: str = "") -> dict[str, Any]:
        return self._call("PUT", kind.path(namespace, name), body)

    def delete(
        self, kind: Kind, name: str, namespace: str = "", *, uid: str = "", is_tried: bool = False
    ) -> dict[str, Any]:
        """uid: of this very object and no later one of that name; is_tried: it is only asked whether it may be done."""
        stated: dict[str, Any] = {
            **({"preconditions": {"uid": uid}} if uid else {}),
            **({"dryRun": ["All"]} if is_tried else {}),
        }
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **stated}  # beside these it heeds no query
        return self._call("DELETE", kind.path(namespace, name), options if stated else None)

    def patch(
        self, kind: Kind, name: str, body: Body, namespace: str = "", how: str = MERGE, *, is_tried: bool = False
    ) -> dict[str, Any]:
        """is_tried: as above."""
        return self._call("PATCH", kind.path(namespace, name) + (TRIED if is_tried else ""), body, how)

    def list(
        self, kind: Kind, namespace: str = "", labels: str = "", timeout_s: float = TIMEOUT_S
    ) -> tuple[list[dict[str, Any]], str]:
        """All objects of a kind, page by page, and the version of the list. timeout_s: of each page."""
        found: list[dict[str, Any]] = []
        query = {"limit": str(PAGE), **({"labelSelector": labels} if labels else {})}
        while True:
            page = self._call("GET", f"{kind.path(namespace)}?{urlencode(query)}", read_s=timeout_s)
            found += page.get("items") or []
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return found, str((page.get("metadata") or {}).get("resourceVersion") or "")
            query["continue"] = more

    def watch(
        self, kind: Kind, version: str, namespace: str = "", labels: str = "", timeout_s: int = WATCH_S
    ) -> Iterator[dict[str, Any]]:
        """What changes after that version: {type, object}. Ends after timeout_s. Raises ApiError, 410 where the version
        is too old."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "timeoutSeconds": str(timeout_s),
            "allowWatchBookmarks": "true",
        }
        query |= {"labelSelector": labels} if labels else {}
        answer = self._send("GET", f"{kind.path(namespace)}?{urlencode(query)}", read_s=timeout_s + TIMEOUT_S)
        try:
            for line in _lines(answer):
                event = json.loads(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise ApiError(int(status.get("code") or 0), str(status.get("message")))
                yield event
        except ApiError:
            raise
        except Exception as error:  # of the connection, or of half a line
            raise ApiError(0, f"{type(error).__name__}: {error}") from None
        finally:
            answer.close()

    def _call(
        self, method: str, path: str, body: Body | None = None, how: str = "", read_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        answer = self._send(method, path, body, how, read_s)
        try:
            found = json.loads(answer.data)
        except Exception as error:
            raise ApiError(0, f"{type(error).__name__}: {error}") from None
        return found if isinstance(found, dict) else {}

    def _send(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        how: str = "",
        read_s: float = TIMEOUT_S,
    ) -> Any:
        headers = {"Accept": "application/json", "Content-Type": how or "application/json"}
        asked_at = self._clock.local()
        try:
            answer = self._api.call_api(
                path,
                method,
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=(min(TIMEOUT_S, read_s), read_s),
            )
        except Exception as error:  # the client's own, or of the connection
            self._hear(getattr(error, "headers", None), asked_at)
            status = int(getattr(error, "status", 0) or 0)
            raise ApiError(status, _said(error, self.host)) from None
        self._hear(answer.headers, asked_at)
        return answer

    def _hear(self, headers: Any, asked_at: float) -> None:
        self._clock.heard(str((headers or {}).get("Date")), asked_at)


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(65536, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


def _said(error: Exception, host: str) -> str:
    body = getattr(error, "body", None)
    if isinstance(reason := getattr(error, "reason", None), Exception):  # of the connection: it names sockets before
        return f"{host}: {str(reason).rpartition('): ')[2]}"[:500]
    try:
        return str(json.loads(body)["message"])[:500] if body else f"{type(error).__name__}: {error}"[:500]
    except (ValueError, KeyError, TypeError):
        return str(body)[:200]


def _namespace_of(contexts: list[dict[str, Any]], current: dict[str, Any], named: str | None) -> str:
    chosen = next((one for one in contexts if one["name"] == named), current)
    return str(chosen["context"].get("namespace") or "default")


def _no_cluster(kubeconfig: Path | None, context: str | None, error: Exception) -> InputError:
    usual = os.environ.get("KUBECONFIG") or "~/.kube/config"
    place, hint = str(kubeconfig or usual), "name with --kubeconfig the file that kubectl uses, or set KUBECONFIG"
    if not any(Path(one).expanduser().is_file() for one in place.split(os.pathsep)):
        return InputError(place, "there is no such file, which would name the cluster", hint)
    if context is not None:
        hint = f"kubectl config get-contexts --kubeconfig {place} lists its contexts"
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(place, f"names no cluster: {said}", hint)


def _is_inside() -> bool:
    return (INSIDE / "token").exists()


def _client() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise EgsError("egs kubernetes: needs the client of Kubernetes: pip install 'egs-core[kubernetes]'") from error
    return client, config
