"""What would be worth loading on a node before its task is there: select_preloads over a pipeline as it is written.

A pod pulls its image when it has been bound to its node, and so while it holds its GPU. A preload is a small pod with
the same image on the same nodes, without a GPU, before that. Tasks with the same image in the same place share one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from egs_kubeflow.convert.documents import Spec, as_plain
from egs_kubeflow.convert.hints import preloaded
from egs_kubeflow.convert.pipeline import Converted
from egs_kubeflow.rewrite.placement import wants_gpu

PREFETCH = "egs.io/prefetch"
"""Label of a step that preloads; its value is `Preload.key`."""

_PLACE = ("nodeSelector", "tolerations", "nodeAffinity", "imagePullSecret", "imagePullPolicy")
_AT_RUN_TIME = ("nodeSelectorJson", "tolerationJson", "nodeAffinityJson", "secretNameParameter")
_SHELLS = ("sh", "bash", "dash", "ash")
WARM_UP = (Path(__file__).parent / "warm_up.py").read_text()


class Preload(msgspec.Struct):
    """One image in one place. key: the same for equal ones; tasks: their numbers, first the one that needs it first;
    place: fields of its KubernetesExecutorConfig; command: what its image is sure to have, empty where nothing is."""

    key: str
    tasks: list[int]
    image: str
    place: dict[str, Any]
    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def select_preloads(spec: Spec, converted: Converted, starts_s: Sequence[float]) -> tuple[list[Preload], list[str]]:
    """Those of a pipeline, and notes: what is not preloaded, and why. starts_s: when each task is expected to start.

    Worth it are tasks with a GPU, or with a hint; what begins with the run has nothing before it.
    """
    graph, found, there, notes = converted.graph, dict[str, Preload](), dict[str, str](), list[str]()
    for number in sorted(range(graph.n_tasks), key=lambda task: (starts_s[task], graph.ids[task])):
        facts = converted.facts[number]
        if facts.kind != "container":
            continue
        one = _preload(spec, converted, number)
        if step := step_key(spec, facts.executor):
            there[step] = f"step {graph.ids[number]} does it"
        elif not graph.parents[number]:
            there[one.key] = f"{graph.ids[number]}, which begins with the run, loads the same there"
        elif wants_gpu(facts.needs) or one.modules or one.files:
            if problem := _why_not(one, there):
                notes.append(f"{graph.ids[number]}: is not preloaded: {problem}")
            else:
                found.setdefault(one.key, msgspec.structs.replace(one, tasks=[])).tasks.append(number)
    return list(found.values()), notes


def step_key(spec: Spec, executor: str) -> str:
    """What the task of an executor preloads; "" for one that does not."""
    config = spec.kubernetes.get(executor)
    return str(config.pod_metadata.labels.get(PREFETCH, "")) if config is not None else ""


def _preload(spec: Spec, converted: Converted, number: int) -> Preload:
    facts = converted.facts[number]
    container, config = spec.executors[facts.executor].container, spec.kubernetes.get(facts.executor)
    plain = as_plain(config) if config is not None else {}
    place = {field: plain[field] for field in _PLACE if field in plain}
    modules, files = preloaded(facts.hints)
    text = json.dumps([container.image, place, modules, files], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Preload(key, [number], container.image, place, modules, files, _command(container, modules, files))


def _why_not(one: Preload, there: dict[str, str]) -> str:
    """Why nothing is loaded ahead for a task; "" where it is."""
    if "{{" in one.image:
        return "its image is known at run time only"
    if any(field in json.dumps(one.place) for field in _AT_RUN_TIME):
        return "where it runs is known at run time only"
    if not {"nodeSelector", "nodeAffinity"} & one.place.keys():
        return "nothing says on which nodes it runs"
    return there.get(one.key, "")


def _command(container: Any, modules: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """What a container of the image can run, as far as the task's own command shows."""
    words = [*container.command, *container.args]
    if modules or files:
        has_python = any("python3" in word for word in words)
        wanted = json.dumps({"modules": modules, "files": files})
        return ("python3", "-c", WARM_UP, wanted) if has_python else ()
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program in _SHELLS:
        return (words[0], "-c", ":")
    return (words[0], "-c", "pass") if program.startswith("python") else ()
