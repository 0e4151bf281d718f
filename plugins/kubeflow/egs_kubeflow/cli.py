"""`egs kubeflow …`: what the command line can do with compiled pipelines, beside `egs graph pipeline.yaml`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from egs_core.errors import InputError
from egs_core.predict import Predictor
from egs_kubeflow.convert.arguments import Argument, parse_arguments, split_arguments
from egs_kubeflow.convert.documents import dump_documents, load_documents
from egs_kubeflow.manifests.command import manifests_command
from egs_kubeflow.rewrite.changes import Rewritten, explain
from egs_kubeflow.rewrite.history import load_history
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import load_profile
from egs_kubeflow.run.command import run_command

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def _group() -> None:
    """Compiled Kubeflow pipelines: for a site, or run on this machine."""


@app.command("compile")
def compile_(
    pipeline: Annotated[Path, typer.Argument(help="A pipeline that kfp has compiled.")],
    profile: Annotated[Path, typer.Option(help="The site: node pools, queues, time limits.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not to stdout.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Say what is changed, and why.")] = False,
    history: Annotated[
        str | None, typer.Option(help="How long tasks took: a database URL, an SQLite file or a predictor's snapshot.")
    ] = None,
    arg: Argument = [],  # noqa: B006  # typer makes a new list for each call
    prefetch_step: Annotated[
        bool,
        typer.Option("--prefetch-step", help="Add steps that pull images ahead. One that fails, fails its run."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; with -o.")] = False,
) -> None:
    """Write a compiled pipeline for a site: placed, labelled, limited; the same commands, images and cache keys.

    Where the pipeline goes to stdout, all else goes to stderr.
    """
    if as_json and output is None:
        raise InputError("--json", "prints the changes, and the pipeline needs a file", "give -o a file")
    documents, site = load_documents(pipeline), load_profile(profile)
    if prefetch_step:
        site = site.model_copy(update={"preload": site.preload.model_copy(update={"step": True})})
    known: Predictor | None = load_history(history, documents.name) if history is not None else None
    arguments = parse_arguments(documents, split_arguments(arg), str(pipeline))
    result = rewrite(documents, site, known, arguments, place=str(pipeline))
    text = dump_documents(result.documents)
    if output is None:
        typer.echo(text, nl=False)
    else:
        _replace(output, text)
    if as_json:
        typer.echo(json.dumps(_facts(result, output)))
    else:
        _show(result, output, diff)


app.command("manifests")(manifests_command)
app.command("run")(run_command)


def _facts(result: Rewritten, output: Path | None) -> dict[str, object]:
    changes = msgspec.to_builtins(result.changes)
    return {"output": str(output), "changes": changes, "notes": list(result.notes)}


def _show(result: Rewritten, output: Path | None, diff: bool) -> None:
    on_stderr = output is None
    if diff:
        for line in explain(result.changes):
            typer.echo(line, err=on_stderr)
    for note in result.notes:
        typer.echo(f"note: {note}", err=True)
    tasks = len({change.task for change in result.changes})
    where = f"{output}: " if output is not None else ""
    typer.echo(f"{where}{_count(len(result.changes), 'change')} in {_count(tasks, 'task')}", err=on_stderr)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    if not path.name:
        raise InputError(str(path), "is no name of a file")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(str(path), f"cannot be written: {error.strerror or error}") from None
