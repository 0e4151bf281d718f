"""The files of a GitOps repository: those of a site, the same for every pipeline, and those of one pipeline.

FOLDER/site/                  kustomization.yaml: apply it once
    access.yaml               who may read runs and make preload pods
    devices.yaml              ResourceClaimTemplates (DRA)
    kueue.yaml                flavors, queues, priority classes
    nodes.yaml                what pools expect of nodes
    preload-class.yaml        the priority of preload pods
FOLDER/pipelines/NAME/        kustomization.yaml: its preloads as one ConfigMap for a controller
    plan.yaml                 what to load, where, when
    preload-TASK.yaml         each as a pod; no pod is applied by itself
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

from egs_core.errors import InputError
from egs_core.places import replace_file
from egs_kubeflow.manifests.access import access
from egs_kubeflow.manifests.objects import HEADER, Object, as_yaml
from egs_kubeflow.manifests.plan import Plan, Planned
from egs_kubeflow.manifests.pods import pod, priority_class, where
from egs_kubeflow.manifests.site import device_claims, kueue_objects, node_profile
from egs_kubeflow.rewrite.profile import Profile
from egs_kubeflow.rewrite.task import label_value

FORMAT = 1
KUSTOMIZE = "kustomize.config.k8s.io/v1beta1"
_UNITS = """Seconds. The pod is to be made `begin.delay_s` after the task `begin.after` has started ("run": the run).
needed_s: when the task is expected to start, after the run; late_s: how much later than that the pod is done."""


def files_of(profile: Profile, plan: Plan) -> dict[str, str]:
    """The text of every file, by its path below the folder. The same for equal inputs."""
    name = _file_name(plan.pipeline)
    site, pipeline = _site(profile), _pipeline(profile, plan)
    found = {f"site/{file}": text for file, text in site.items()}
    return found | {f"pipelines/{name}/{file}": text for file, text in pipeline.items()}


def write_files(folder: Path, files: dict[str, str]) -> list[str]:
    """Write them, and take away what was written there before and is not among them. The paths that are different.

    Raises InputError, before anything is written, for a file of that name that somebody else has made.
    """
    there = _ours(folder, files)
    stale = [path for path in there if path not in files]
    changed = [path for path, text in files.items() if there.get(path) != text]
    try:
        for path in changed:
            replace_file(folder / path, files[path].encode())
        for path in stale:
            (folder / path).unlink()
    except OSError as error:
        raise InputError(str(folder), f"cannot be written: {error.strerror or error}") from None
    return sorted([*changed, *stale])


def _site(profile: Profile) -> dict[str, str]:
    objects = {
        "access.yaml": access(profile),
        "devices.yaml": device_claims(profile),
        "kueue.yaml": kueue_objects(profile),
        "nodes.yaml": node_profile(profile),
        "preload-class.yaml": [priority_class()],
    }
    written = {file: as_yaml(found) for file, found in objects.items() if found}
    return written | {"kustomization.yaml": as_yaml([_kustomization(resources=sorted(written))])}


def _pipeline(profile: Profile, plan: Plan) -> dict[str, str]:
    names = _pod_names(plan)
    pods = {file: as_yaml([pod(plan, planned, profile)]) for file, planned in zip(names, plan.preloads, strict=True)}
    found = {"plan.yaml": as_yaml([_plan(plan, names, profile)], _UNITS), **pods}
    config = {
        "name": f"egs-preload-{_file_name(plan.pipeline).replace('.', '-')}",
        "namespace": profile.controller_namespace,
        "files": sorted(found),
        "options": {"disableNameSuffixHash": True, "labels": {"egs.io/part": "preload"}},
    }
    return found | {"kustomization.yaml": as_yaml([_kustomization(configMapGenerator=[config])])}


def _kustomization(**content: Any) -> Object:
    return {"apiVersion": KUSTOMIZE, "kind": "Kustomization", **content}


def _plan(plan: Plan, names: list[str], profile: Profile) -> Object:
    preloads = [_entry(one, file, profile) for one, file in zip(plan.preloads, names, strict=True)]
    return {"format": FORMAT, "pipeline": plan.pipeline, "preloads": preloads, "not_preloaded": list(plan.notes)}


def _entry(planned: Planned, file: str, profile: Profile) -> Object:
    one, assumed = planned.preload, profile.preload.takes is None
    found: Object = {"task": planned.task}
    if planned.also:
        found["also_for"] = list(planned.also)
    found |= {"pod": file, "image": one.image}
    found |= {name: list(stated) for name, stated in (("modules", one.modules), ("files", one.files)) if stated}
    found |= where(one.place)
    found["begin"] = {"after": planned.after or "run", "delay_s": round(planned.delay_s, 1)}
    found |= {"takes_s": planned.takes_s, "takes_is": "assumed" if assumed else "the site's"}
    found |= {"needed_s": round(planned.needed_s, 1), "needed_is": "a guess" if planned.is_guess else "predicted"}
    found |= {"late_s": round(planned.late_s, 1), "deadline_s": profile.preload.deadline}
    return found | ({"may_be_skipped": True} if planned.may_be_skipped else {})


def _pod_names(plan: Plan) -> list[str]:
    found: list[str] = []
    for planned in plan.preloads:
        stem, number = f"preload-{_file_name(planned.task)}", 1
        while (name := f"{stem}.yaml" if number == 1 else f"{stem}-{number}.yaml") in found:
            number += 1
        found.append(name)
    return found


def _file_name(text: str) -> str:
    """A name that is one of a file, of a ConfigMap and of a key in it."""
    return re.sub(r"[^a-z0-9.-]", "-", label_value(text).lower()).strip(".-") or "pipeline"


def _ours(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The texts of the files in the folders of `files` that this command has written before."""
    found: dict[str, str] = {}
    for inside in sorted({PurePosixPath(path).parent for path in files}):
        for path in sorted((folder / inside).glob("*.yaml")):
            name = str(inside / path.name)
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(str(path), f"cannot be read: {error}") from None
            if text.startswith(HEADER):
                found[name] = text
            elif name in files:
                raise InputError(str(path), "is there, and not written by this command", "choose another folder")
    return found
