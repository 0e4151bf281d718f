"""`egs kubeflow manifests pipeline.yaml --profile site.yaml -o FOLDER`: files for a GitOps repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from egs_core.errors import InputError
from egs_core.predict import Predictor
from egs_kubeflow.convert.documents import load_documents
from egs_kubeflow.manifests.files import files_of, write_files
from egs_kubeflow.manifests.plan import Plan, Planned, plan_preloads
from egs_kubeflow.rewrite.history import load_history
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import Profile, load_profile


def manifests_command(
    pipeline: Annotated[Path, typer.Argument(help="A pipeline that kfp has compiled.")],
    profile: Annotated[Path, typer.Option(help="The site: node pools, queues, quotas.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder; written is below site/ and pipelines/.")],
    history: Annotated[
        str | None, typer.Option(help="How long tasks took: a database URL, an SQLite file or a predictor's snapshot.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write what a site needs in its cluster, and what a controller would preload for a pipeline, as files for GitOps.

    Nothing is applied: no connection is made.
    """
    if output.exists() and not output.is_dir():
        raise InputError(str(output), "is no folder")
    documents, site = load_documents(pipeline), load_profile(profile)
    known: Predictor | None = load_history(history, documents.name) if history is not None else None
    written = rewrite(documents, site, known, place=str(pipeline))
    plan = plan_preloads(written.documents, site.preload, known, str(pipeline))
    files = files_of(site, plan)
    changed = write_files(output, files)
    notes = list(
        dict.fromkeys((*written.notes, *plan.notes, *uncounted_memory(site)))
    )  # both say which tasks are not preloaded
    if as_json:
        facts = {"output": str(output), "files": sorted(files), "changed": changed, "notes": notes}
        typer.echo(json.dumps(facts))
        return
    for line in (*_preloads(plan), *_next_steps(site)):
        typer.echo(line)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{output}: {len(files)} files, {len(changed)} of them changed")


def uncounted_memory(profile: Profile) -> list[str]:
    """Cluster queues that would admit nothing: each pod of a pipeline states memory, for its launcher."""
    return [
        f"cluster queue {queue.name!r} counts no memory, which each pod of a pipeline states: Kueue admits none; "
        "say memory in its quotas, or `resources: {quotaCheckStrategy: IgnoreUndeclared}` in Kueue's configuration"
        for queue in profile.cluster_queues
        if any(quota.memory is None for quota in queue.quotas.values())
    ]


def _preloads(plan: Plan) -> list[str]:
    return [f"{planned.preload.image} for {planned.task}: {_when(planned)}" for planned in plan.preloads]


def _when(planned: Planned) -> str:
    at = f"{planned.delay_s:.0f} s after {planned.after} has started" if planned.after else ""
    when = at or (f"{planned.delay_s:.0f} s into the run" if planned.delay_s >= 1 else "when the run starts")
    needed = f"needed at {planned.needed_s:.0f} s{' (a guess)' if planned.is_guess else ''}"
    late = f", {planned.late_s:.0f} s too late" if planned.late_s else ""
    return f"{when}; takes {planned.takes_s:.0f} s, {needed}{late}"


def _next_steps(profile: Profile) -> list[str]:
    """What the rewrite does not name yet, although it is written here."""
    kinds = [("queue", one.name) for one in profile.queues if one.cluster_queue and not one.exists]
    kinds += [
        ("priority class", one.name) for one in profile.priority_classes if one.value is not None and not one.exists
    ]
    return [f"{kind} {name}: when it is in the cluster, say `exists: true` in the profile" for kind, name in kinds]
