"""What is played beside a real controller of workloads, where no container runs: the kubelet of the tests' nodes, and
in Argo's pods its executor, which writes what a pod has put out into a WorkflowTaskResult."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.admission import Rules
from egs_core.kubernetes.cluster import PODS, WEBHOOKS, ApiError, Cluster, Kind
from egs_core.kubernetes.manifests import objects
from egs_core.kubernetes.objects import Object, items, moment, part, seconds_of, text
from egs_core.kubernetes.webhook import Webhook
from tests.cluster.real import HERE, TRIED, Site, until
from tests.unit.kubernetes.made_pods import pod

STATUS = Kind("/api/v1", "pods")
CRDS = Kind("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False)
RESULTS = Kind("/apis/argoproj.io/v1alpha1", "workflowtaskresults")
SECONDS, EXIT = "egs-test/seconds", "egs-test/exit-code"
"""Annotations of pods: so long it runs, and what it ends with. Without, it runs until the test ends it."""
KILLED = 137
ANSWERS_S = 20.0
_ASKED: dict[str, str] = {}
Outputs = Callable[[str], Mapping[str, str]]


class Kubelet:
    """Of all nodes of a site. outputs: what the pod of this node of Argo's puts out. begun: of each pod that has
    started what Argo calls it, else its name, in that order."""

    def __init__(self, site: Site, outputs: Outputs = lambda _: {}) -> None:
        self._site, self._outputs = site, outputs
        self.begun: list[str] = []
        self.problem: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def end(self, name: str, exit_code: int = 0) -> None:
        """The containers of this pod, or of the pod that Argo calls so."""
        self._end(
            next(one for one in self._pods() if name in (called(one), text(part(one, "metadata"), "name"))), exit_code
        )

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.1):
                for one in self._pods():
                    with suppress(ApiError):  # it is gone, or another one by now
                        self._look(one)
        except BaseException as error:  # the test says so
            self.problem = error
            raise

    def _pods(self) -> list[Object]:
        found = self._site.admin.list(PODS, self._site.name)[0]
        return [one for one in found if text(part(one, "spec"), "nodeName")]

    def _look(self, raw: Object) -> None:
        meta, phase = part(raw, "metadata"), text(part(raw, "status"), "phase")
        if "deletionTimestamp" in meta:
            if phase == "Running":
                self._end(raw, KILLED)
            self._site.admin.delete(PODS, f"{text(meta, 'name')}?gracePeriodSeconds=0", self._site.name)
        elif phase == "Pending":
            self._begin(raw)
        elif phase == "Running":
            self._go_on(raw)

    def _begin(self, raw: Object) -> None:
        """The node's clock is the API server's."""
        at = moment(self._site.admin.now())
        self._report(raw, False)
        self._say(raw, {"phase": "Running", "startTime": at}, {"running": {"startedAt": at}}, is_ready=True)
        self.begun.append(called(raw))

    def _go_on(self, raw: Object) -> None:
        notes, began = part(part(raw, "metadata"), "annotations"), seconds_of(part(raw, "status").get("startTime"))
        ran_s, deadline_s = self._site.admin.now() - began, part(raw, "spec").get("activeDeadlineSeconds")
        if deadline_s is not None and ran_s >= deadline_s:
            self._end(raw, KILLED, "DeadlineExceeded")
        elif SECONDS in notes and ran_s >= float(notes[SECONDS]):
            self._end(raw, int(notes.get(EXIT, "0")))

    def _end(self, raw: Object, exit_code: int, reason: str = "") -> None:
        began, at = part(raw, "status").get("startTime"), moment(self._site.admin.now())
        self._report(raw, True)
        status = {
            "phase": "Failed" if exit_code else "Succeeded",
            **({"reason": reason, "message": reason} if reason else {}),
        }
        ended = {
            "exitCode": exit_code,
            "startedAt": began,
            "finishedAt": at,
            "reason": "Error" if exit_code else "Completed",
        }
        self._say(raw, status, {"terminated": ended}, is_ready=False)

    def _say(self, raw: Object, status: dict[str, Any], state: Object, *, is_ready: bool) -> None:
        containers = [
            {"name": one["name"], "image": one["image"], "imageID": one["image"], "ready": is_ready, "restartCount": 0}
            | {"started": is_ready, "state": _of(one, state)}
            for one in items(part(raw, "spec"), "containers")
        ]
        ready = {"type": "Ready", "status": "True" if is_ready else "False", "lastTransitionTime": moment(time.time())}
        body = {"metadata": {"uid": raw["metadata"]["uid"]}, "status": status | {"containerStatuses": containers}}
        kept = [one for one in items(part(raw, "status"), "conditions") if one["type"] != "Ready"]
        body["status"]["conditions"] = [*kept, ready]
        self._site.admin.patch(STATUS, f"{raw['metadata']['name']}/status", body, self._site.name)

    def _report(self, raw: Object, is_over: bool) -> None:
        """As Argo's executor does from within the pod: at its start that there will be outputs, at its end which."""
        meta = part(raw, "metadata")
        run, node = text(part(meta, "labels"), names.ARGO_RUN), text(part(meta, "annotations"), f"{ARGO}/node-id")
        if not run or not node:
            return
        owner = next(one for one in items(meta, "ownerReferences") if one["kind"] == "Workflow")
        labels = {names.ARGO_RUN: run, f"{ARGO}/report-outputs-completed": str(is_over).lower()}
        body: dict[str, Any] = {"apiVersion": "argoproj.io/v1alpha1", "kind": "WorkflowTaskResult"}
        body["metadata"] = {"name": node, "labels": labels, "ownerReferences": [owner]}
        found = self._outputs(called(raw)) if is_over else {}
        if found:
            body["outputs"] = {"parameters": [{"name": key, "value": value} for key, value in found.items()]}
        try:
            self._site.admin.create(RESULTS, body, self._site.name)
        except ApiError as error:
            if error.status != 409:
                raise
            self._site.admin.patch(RESULTS, node, body, self._site.name)


ARGO = names.ARGO_RUN.partition("/")[0]


def _of(container: Object, state: Object) -> Object:
    """Argo's own containers end well also where the task's does not."""
    if container["name"] == "wait" and "terminated" in state:
        return {"terminated": {**state["terminated"], "exitCode": 0}}
    return state


def called(raw: Object) -> str:
    """What Argo calls a pod, without its run's name before it; else the pod's name."""
    meta = part(raw, "metadata")
    return text(part(meta, "annotations"), names.ARGO_NODE) or text(meta, "name")


@contextmanager
def played(site: Site, outputs: Outputs = lambda _: {}) -> Iterator[Kubelet]:
    """A kubelet for the time of the test."""
    found = Kubelet(site, outputs)
    found.start()
    try:
        yield found
    finally:
        found.stop()
        assert found.problem is None


@contextmanager
def hooked(site: Site) -> Iterator[None]:
    """EGS's webhook, called at this machine's loopback: pods are gated when they are made, whoever makes them. Skips
    where the API server does not reach it: it runs elsewhere."""
    hook = Webhook(site.admin, Rules(600.0), ["127.0.0.1"], lambda: True, lambda _: None, ("127.0.0.1", 0))
    config = next(one for one in objects(site.of) if one["kind"] == "MutatingWebhookConfiguration")
    config["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{hook.port}/pods"}
    site.admin.delete(WEBHOOKS, names.CONTROLLER)
    site.admin.create(WEBHOOKS, config)
    hook.start()
    try:
        end = time.monotonic() + ANSWERS_S
        while not _is_gated(site):
            if time.monotonic() > end:
                pytest.skip("the API server reaches no webhook at this machine's loopback")
            time.sleep(0.1)
        yield
    finally:
        hook.stop()


def _is_gated(site: Site) -> bool:
    made = pod("tried", namespace=site.name, gate=False, spec=HERE)
    return "schedulingGates" in site.admin.create(TRIED, made, site.name)["spec"]


def why_not(
    cluster: Cluster, crd: str, kind: Kind, body: dict[str, Any], namespace: str, answers: Callable[[Object], object]
) -> str:
    """Why no controller is there that does something with such an object, which is taken away again; "": one is. It is
    asked once."""
    if crd not in _ASKED:
        _ASKED[crd] = _asked(cluster, crd, kind, body, namespace, answers)
    return _ASKED[crd]


def _asked(
    cluster: Cluster, crd: str, kind: Kind, body: dict[str, Any], namespace: str, answers: Callable[[Object], object]
) -> str:
    name, problem = body["metadata"]["name"], ""
    try:
        conditions = items(part(cluster.get(CRDS, crd), "status"), "conditions")
        if not any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
            return f"{crd} is not Established"
        cluster.create(kind, body, namespace)
    except ApiError as error:
        return f"{crd}: {error}"
    end = time.monotonic() + ANSWERS_S
    while not answers(cluster.get(kind, name, namespace)) and not problem:
        time.sleep(0.2)
        if time.monotonic() > end:
            problem = f"nothing was done with {kind.plural}/{name} in {ANSWERS_S:.0f} s"
    cluster.delete(kind, name, namespace)
    until(lambda: _is_gone(cluster, kind, name, namespace))
    return problem


def _is_gone(cluster: Cluster, kind: Kind, name: str, namespace: str) -> bool:
    try:
        cluster.get(kind, name, namespace)
    except ApiError as error:
        return error.status == 404
    return False


def stated(value: object) -> str:
    """An object as a parameter of Argo's has it."""
    return json.dumps(value, sort_keys=True)
