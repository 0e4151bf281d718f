"""Workflows for Argo's own controller: with containers as their tasks, and such as Kubeflow's compiler writes them.

What a driver of these would put out is the test's to say (`played.Kubelet`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import WORKFLOWS, Kind
from egs_core.kubernetes.objects import Object, part, text
from egs_core.kubernetes.workflows import LABEL_KEY, LABEL_VALUE
from tests.cluster.played import SECONDS, why_not
from tests.cluster.real import HERE, Site

TEMPLATES = Kind("/apis/argoproj.io/v1alpha1", "workflowtemplates")
CRD = "workflows.argoproj.io"
IMAGE, COMMAND = "image:1", ["run"]
PATCH = "pod-spec-patch"
LABELS = (names.WORKLOAD, names.TASK, names.PREDICTED_S)
Raw = dict[str, Any]


def why_no_argo(site: Site) -> str:
    """Why Argo's controller is not there; "": it is."""
    body = {
        "metadata": {"name": "asked"},
        "spec": {"entrypoint": "main", "templates": [{"name": "main", "suspend": {}}]},
    }
    version = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
    return why_not(site.admin, CRD, WORKFLOWS, version | body, site.name, lambda raw: part(raw, "status").get("phase"))


def leaf(name: str, **says: Any) -> Raw:
    """A template of one container, which is EGS's. gpus; rank and predicted: labels; hints, notes; seconds: so long it
    runs; retries: under retryPolicy: Always."""
    labels = {names.WORKLOAD: "w", names.TASK: name}
    labels |= {
        label: str(says[key]) for key, label in (("rank", names.RANK), ("predicted", names.PREDICTED_S)) if key in says
    }
    notes = dict(says.get("notes", {}))
    if "hints" in says:
        notes[names.HINTS] = json.dumps(says["hints"])
    if "seconds" in says:
        notes[SECONDS] = str(says["seconds"])
    limits = {"cpu": "1"} | ({"nvidia.com/gpu": str(says["gpus"])} if says.get("gpus") else {})
    container = {"image": IMAGE, "command": COMMAND, "resources": {"limits": limits}}
    found: Raw = {"name": name, "metadata": {"labels": labels, "annotations": notes}, "container": container}
    if "retries" in says:
        found["retryStrategy"] = {"limit": str(says["retries"]), "retryPolicy": "Always"}
    return found


def start(site: Site, name: str, tasks: Mapping[str, Sequence[str]], leaves: Sequence[Raw], **spec: Any) -> None:
    """A run of these tasks, each of the template that is called as it, after those that it names."""
    site.admin.create(WORKFLOWS, _body(site, name, _templates(tasks, leaves), "main", **spec), site.name)


def start_by_template(site: Site, name: str, tasks: Mapping[str, Sequence[str]], leaves: Sequence[Raw]) -> None:
    """The same by a WorkflowTemplate of that name."""
    made = _body(site, name, _templates(tasks, leaves), "main") | {"kind": "WorkflowTemplate"}
    site.admin.create(TEMPLATES, made, site.name)
    made |= {"kind": "Workflow", "spec": {"workflowTemplateRef": {"name": name}}}
    site.admin.create(WORKFLOWS, made, site.name)


def _templates(tasks: Mapping[str, Sequence[str]], leaves: Sequence[Raw]) -> list[Raw]:
    dag = [{"name": task, "template": task, "dependencies": list(after)} for task, after in tasks.items()]
    return [{"name": "main", "dag": {"tasks": dag}}, *leaves]


def _body(site: Site, name: str, templates: Sequence[Raw], entry: str, **spec: Any) -> Raw:
    where = {"nodeSelector": {"egs-test": site.name}, "tolerations": HERE["tolerations"]}
    body: Raw = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": name}}
    return body | {"spec": {"entrypoint": entry, "templates": list(templates), **where, **spec}}


def phase(site: Site, name: str) -> str:
    """As Argo says it of a run."""
    return text(part(site.admin.get(WORKFLOWS, name, site.name), "status"), "phase")


def node(site: Site, name: str) -> Object:
    """A node of a run, which its name begins with."""
    nodes = part(part(site.admin.get(WORKFLOWS, name.partition(".")[0], site.name), "status"), "nodes")
    return next((one for one in nodes.values() if one["name"] == name), {})


# --- as Kubeflow's compiler writes them ---


def start_pipeline(site: Site, name: str, steps: Mapping[str, Mapping[str, Any]]) -> None:
    """steps: of each seconds: as its label says, gpus, after; many: it is a loop, which turns out how long it is."""
    templates = [
        _driver("system-dag-driver", "iteration-count"),
        _driver("system-container-driver", PATCH, "cached-decision"),
    ]
    templates += [_executor(), _container()]
    root: list[Raw] = []
    for step, says in steps.items():
        depends = " && ".join(f"{before}.Succeeded" for before in says.get("after", ()))
        if not says.get("many"):
            root += _task(step, says, depends)
            continue
        inner = _task("x", {**says, "of": step}, "")
        templates.append({"name": f"comp-{step}-iteration", "dag": {"tasks": inner}})
        count = "{{tasks.iteration-driver.outputs.parameters.iteration-count}}"
        many = {
            "name": "iteration-iterations",
            "template": f"comp-{step}-iteration",
            "depends": "iteration-driver.Succeeded",
        }
        loop = [
            {"name": "iteration-driver", "template": "system-dag-driver"},
            many | {"withSequence": {"count": count}},
        ]
        templates.append({"name": f"comp-{step}-iterator", "parallelism": 1, "dag": {"tasks": loop}})
        root.append({"name": step, "template": f"comp-{step}-iterator", "depends": depends})
    entry = [
        {"name": "root-driver", "template": "system-dag-driver"},
        {"name": "root", "template": "root", "depends": "root-driver.Succeeded"},
    ]
    templates += [{"name": "root", "dag": {"tasks": root}}, {"name": "entrypoint", "dag": {"tasks": entry}}]
    containers = [{"name": f"implementations-{step}", "value": _asks(says)} for step, says in steps.items()]
    arguments = {"parameters": containers}
    site.admin.create(WORKFLOWS, _body(site, name, templates, "entrypoint", arguments=arguments), site.name)


def outputs_of(steps: Mapping[str, Mapping[str, Any]], many: int = 1) -> Any:
    """What the drivers of these steps put out: what the container is made of, and how often a loop runs."""

    def found(node: str) -> dict[str, str]:
        task = node.rpartition(".")[2]
        if task in ("root-driver", "iteration-driver"):
            return {"iteration-count": str(many), "condition": "true"}
        if not task.endswith("-driver"):
            return {}
        step = task.removesuffix("-driver") if task != "x-driver" else node.split(".")[2]
        limits = {"cpu": "1"} | ({"nvidia.com/gpu": str(gpus)} if (gpus := steps[step].get("gpus")) else {})
        made = {"containers": [{"name": "main", "image": IMAGE, "resources": {"limits": limits}}]}
        return {PATCH: json.dumps(made), "cached-decision": "false", "condition": "true"}

    return found


def _asks(says: Mapping[str, Any]) -> str:
    asked: Raw = {"cpuLimit": 1}
    if says.get("gpus"):
        asked["accelerator"] = {"type": "nvidia.com/gpu", "count": str(says["gpus"])}
    return json.dumps({"image": IMAGE, "resources": asked})


def _driver(name: str, *outputs: str) -> Raw:
    """It writes files, which are its outputs. Its pods wait at no gate."""
    written = [
        {"name": one, "valueFrom": {"path": f"/tmp/outputs/{one}", "default": ""}} for one in (*outputs, "condition")
    ]
    inputs = [{"name": "container", "default": ""}, {"name": "kubernetes-config", "default": ""}]
    notes = {"pipelines.kubeflow.org/runtime-role": "driver", SECONDS: "0"}
    container = {"image": IMAGE, "command": ["driver"]}
    return {
        "name": name,
        "inputs": {"parameters": inputs},
        "outputs": {"parameters": written},
        "metadata": {"annotations": notes},
        "container": container,
    }


def _task(step: str, says: Mapping[str, Any], depends: str) -> list[Raw]:
    """A driver, and after it what runs."""
    asks = {"name": "container", "value": f"{{{{workflow.parameters.implementations-{says.get('of', step)}}}}}"}
    driver: Raw = {"name": f"{step}-driver", "template": "system-container-driver", "arguments": {"parameters": [asks]}}
    stated = {names.WORKLOAD: "w", names.TASK: step, names.PREDICTED_S: str(says["seconds"])}
    given = [(PATCH, f"{{{{tasks.{step}-driver.outputs.parameters.{PATCH}}}}}")]
    given.append(("cached-decision", f"{{{{tasks.{step}-driver.outputs.parameters.cached-decision}}}}"))
    for number, label in enumerate(LABELS, 1):
        given += [(f"{LABEL_KEY}-{number}", label), (f"{LABEL_VALUE}-{number}", stated[label])]
    parameters = [{"name": key, "value": value} for key, value in given]
    runs = {"name": step, "template": "system-container-executor", "depends": f"{step}-driver.Succeeded"}
    return [driver | ({"depends": depends} if depends else {}), runs | {"arguments": {"parameters": parameters}}]


def _inputs() -> list[Raw]:
    found = [{"name": PATCH}, {"name": "cached-decision", "default": "false"}]
    for number in range(1, len(LABELS) + 1):
        found += [{"name": f"{LABEL_KEY}-{number}"}, {"name": f"{LABEL_VALUE}-{number}"}]
    return found


def _executor() -> Raw:
    passed = [{"name": one["name"], "value": f"{{{{inputs.parameters.{one['name']}}}}}"} for one in _inputs()]
    step = {
        "name": "executor",
        "template": "system-container-impl",
        "when": "{{inputs.parameters.cached-decision}} != true",
    }
    return {
        "name": "system-container-executor",
        "inputs": {"parameters": _inputs()},
        "dag": {"tasks": [step | {"arguments": {"parameters": passed}}]},
    }


def _container() -> Raw:
    labels = {
        f"{{{{inputs.parameters.{LABEL_KEY}-{number}}}}}": f"{{{{inputs.parameters.{LABEL_VALUE}-{number}}}}}"
        for number in range(1, len(LABELS) + 1)
    }
    return {
        "name": "system-container-impl",
        "inputs": {"parameters": _inputs()},
        "metadata": {"labels": labels, "annotations": {"pipelines.kubeflow.org/runtime-role": "launcher"}},
        "podSpecPatch": f"{{{{inputs.parameters.{PATCH}}}}}",
        "container": {
            "image": "should-be-overridden-during-runtime",
            "command": ["should-be-overridden-during-runtime"],
        },
    }
