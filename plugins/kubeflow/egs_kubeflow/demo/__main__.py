"""`python -m egs_kubeflow.demo --variant native --json`: run one variant of the demo and print its figures."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from egs_core.adapter import DemoRequest
from egs_core.errors import EgsError


def main(
    variant: Annotated[str, typer.Option(help="native, fifo, tuned or egs.")] = "native",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run a pipeline of nine trainings on 4 CPUs and 2 emulated GPUs."""
    from egs_kubeflow.demo.run import demo

    with tempfile.TemporaryDirectory() as out:
        outcome = demo(DemoRequest((variant,), Path(out)))
    run = outcome.runs[variant]
    bound = {"ideal_bound_s": round(outcome.ideal_bound_s, 3), "emulated_gpus": outcome.emulated_gpus}
    figures = {"variant": variant, **bound, **run.metrics, "digest": run.digest}
    print(json.dumps(figures) if as_json else "\n".join(f"{name:>18}  {value}" for name, value in figures.items()))


if __name__ == "__main__":
    try:
        typer.run(main)
    except EgsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
