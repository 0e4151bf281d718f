"""`python -m egs_ray.demo --variant native --json`: run one variant of the demo and print its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from egs_core.errors import EgsError
from egs_core.runlog.io import write_run
from egs_ray.demo.measure import measure_variant, summary_of


def main(
    variant: Annotated[str, typer.Option(help="native, tuned, egs, hook, egs-no-preload, …")] = "native",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    log: Annotated[Path | None, typer.Option(help="Write the run log to this file.")] = None,
) -> None:
    """Run six small image-classification pipelines on a local Ray of 4 CPUs and 2 emulated GPUs."""
    measured = measure_variant(variant)
    if log is not None:
        write_run(log, measured.header, measured.records)
    figures = summary_of(measured)
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name not in ("reports", "digest"):
            print(f"{name:>18}  {value}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except EgsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
