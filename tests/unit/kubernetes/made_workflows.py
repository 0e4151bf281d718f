"""Workflows as Kubeflow's compiler (2.16) writes them and as Argo (4.1) notes how far they have come. Made up, not
recorded: names of templates, parameters, nodes and fields are theirs, what they say is not.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit.kubernetes.made_pods import pod

EXECUTOR, IMPL = "metadata-0-2-system-container-executor", "metadata-0-2-system-container-impl"
Tasks = Mapping[str, Any]


def task(seconds: float | None = None, after: Sequence[str] = (), gpus: object = None) -> dict[str, Any]:
    """A container task. seconds: as its label says; gpus: as its container does."""
    return {"seconds": seconds, "after": after, "gpus": gpus}


def group(tasks: Tasks, after: Sequence[str] = (), **stated: Any) -> dict[str, Any]:
    """A sub-DAG: a condition with when=True, a loop with loops=True, with at_once, with on_exit: a task at its end."""
    return {"tasks": tasks, "after": after, **stated}


def workflow(name: str, tasks: Tasks, nodes: Sequence[Mapping[str, Any]] = (), **status: Any) -> dict[str, Any]:
    """A run with these tasks in its root."""
    templates: list[dict[str, Any]] = [_leaf("system-container-driver", "driver"), _leaf("system-dag-driver", "driver")]
    templates += [
        _dag(
            EXECUTOR, [{"name": "executor", "template": IMPL, "when": "{{inputs.parameters.cached-decision}} != true"}]
        )
    ]
    templates += [_leaf(IMPL, "launcher")]
    _add_dag(templates, "root", tasks)
    first = {"name": "root-driver", "template": "system-dag-driver"}
    root = {"name": "root", "template": "root", "depends": "root-driver.Succeeded"}
    templates.append(_dag("entrypoint", [first, root]))
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": {"pipeline/runid": "1"}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": meta,
        "spec": {"entrypoint": "entrypoint", "templates": templates, "arguments": {"parameters": _containers(tasks)}},
        "status": {"phase": "Running", "nodes": noted(name, nodes)} | status,
    }


def node(path: str, phase: str = "Succeeded", **stated: Any) -> dict[str, Any]:
    """What has begun; path: its name without the run's. outputs: parameters; took: seconds."""
    found: dict[str, Any] = {"path": path, "phase": phase, "type": "Pod", "startedAt": "2026-01-01T00:00:00Z"}
    if "took" in stated:
        found["finishedAt"] = f"2026-01-01T00:00:{stated['took']:02d}Z"
    if "outputs" in stated:
        found["outputs"] = {"parameters": [{"name": key, "value": value} for key, value in stated["outputs"].items()]}
    return found | {key: stated[key] for key in ("templateName", "type") if key in stated}


def noted(name: str, nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`status.nodes`."""
    made = [{**one, "id": f"{name}-{number}", "name": f"{name}.{one['path']}"} for number, one in enumerate(nodes)]
    return {str(one["id"]): {key: value for key, value in one.items() if key != "path"} for one in made}


def packed(nodes: Mapping[str, Any]) -> str:
    """`status.compressedNodes`."""
    return base64.b64encode(gzip.compress(json.dumps(nodes).encode())).decode()


def executor(run: str, path: str, **stated: Any) -> dict[str, Any]:
    """The pod of a task, as `made_pods.pod`. path: of the task; ran: so many seconds, and has succeeded."""
    names = {"workflows.argoproj.io/workflow": run, "pipelines.kubeflow.org/v2_component": "true"}
    note = {"workflows.argoproj.io/node-name": f"{run}.root.{path}.executor"}
    name = stated.pop("name", "") or f"{run}-{path}".replace(".", "-").replace("(", "-").replace(")", "").replace(
        ":", "-"
    )
    made = pod(name, **{"run": run, "uid": f"uid-{name}"} | stated, labels=names, notes=note)
    if "ran" in stated:
        times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": f"2026-01-01T00:00:{stated['ran']:02d}Z"}
        made["status"] = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": {"terminated": times}}]}
    return made


def _add_dag(templates: list[dict[str, Any]], name: str, tasks: Tasks) -> None:
    steps: list[dict[str, Any]] = []
    for key, one in tasks.items():
        depends = " && ".join(f"{before}.Succeeded" for before in one["after"])
        if "tasks" not in one:
            value = f"{{{{workflow.parameters.implementations-{key}}}}}"
            driver = _step(f"{key}-driver", "system-container-driver", depends)
            driver["arguments"] = {"parameters": [{"name": "container", "value": value}]}
            steps += [driver, _executor(key, one["seconds"])]
            continue
        _add_dag(templates, f"comp-{name}-{key}", one["tasks"])
        if one.get("loops"):
            steps.append(_loop(templates, name, key, depends, one.get("at_once")))
        else:
            steps += [
                _step(f"{key}-driver", "system-dag-driver", depends),
                _step(key, f"comp-{name}-{key}", f"{key}-driver.Succeeded"),
            ]
        if one.get("when"):
            steps[-1]["when"] = f"{{{{tasks.{key}-driver.outputs.parameters.condition}}}} != false"
        if one.get("on_exit"):
            hook = f"exit-hook-{name}-{key}"
            templates.append(
                _dag(hook, [_step("last-driver", "system-container-driver", ""), _executor("last", one["on_exit"])])
            )
            steps[-1]["hooks"] = {"exit": {"template": hook}}
    templates.append(_dag(name, steps))


def _loop(templates: list[dict[str, Any]], name: str, key: str, depends: str, at_once: int | None) -> dict[str, Any]:
    item = [
        _step("iteration-item-driver", "system-dag-driver", ""),
        _step("iteration-item", f"comp-{name}-{key}", "iteration-item-driver.Succeeded"),
    ]
    templates.append(_dag(f"comp-{name}-{key}-iteration", item))
    many = _step("iteration-iterations", f"comp-{name}-{key}-iteration", "iteration-driver.Succeeded")
    many["withSequence"] = {"count": "{{tasks.iteration-driver.outputs.parameters.iteration-count}}"}
    made = _dag(f"comp-{name}-{key}-iterator", [_step("iteration-driver", "system-dag-driver", ""), many])
    templates.append(made | ({"parallelism": at_once} if at_once else {}))
    return _step(key, f"comp-{name}-{key}-iterator", depends)


def _containers(tasks: Tasks) -> list[dict[str, str]]:
    found = []
    for key, one in tasks.items():
        if "tasks" in one:
            found += _containers(one["tasks"])
            continue
        asked = {} if one["gpus"] is None else {"accelerator": {"type": "nvidia.com/gpu", "count": one["gpus"]}}
        text = json.dumps({"image": "image:1", "resources": asked})
        found.append({"name": f"implementations-{key}", "value": text})
    return found


def _executor(key: str, seconds: float | None) -> dict[str, Any]:
    labels = {"egs.io/task": key} | ({} if seconds is None else {"egs.io/predicted-s": str(seconds)})
    pairs = [
        {"name": f"pod-metadata-label-{what}-{number}", "value": value}
        for number, label in enumerate(sorted(labels), 1)
        for what, value in (("key", label), ("val", labels[label]))
    ]
    made = _step(key, EXECUTOR, f"{key}-driver.Succeeded")
    return made | {"arguments": {"parameters": [{"name": "pod-spec-patch", "value": "{{...}}"}, *pairs]}}


def _step(name: str, template: str, depends: str) -> dict[str, Any]:
    return {"name": name, "template": template} | ({"depends": depends} if depends else {})


def _dag(name: str, steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"name": name, "dag": {"tasks": list(steps)}, "inputs": {}, "outputs": {}, "metadata": {}}


def _leaf(name: str, role: str) -> dict[str, Any]:
    notes = {"pipelines.kubeflow.org/runtime-role": role}
    return {"name": name, "container": {"image": "image:1"}, "metadata": {"annotations": notes}}
