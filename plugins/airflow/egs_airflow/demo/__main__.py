"""`python -m egs_airflow.demo VARIANT…`: run single variants of the demo and print the figures of each as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from egs_core.adapter import DemoRequest
from egs_core.errors import EgsError

if __name__ == "__main__":
    try:
        from egs_airflow.demo.run import VARIANTS, demo

        with tempfile.TemporaryDirectory() as out:
            runs = demo(DemoRequest(tuple(sys.argv[1:]) or tuple(VARIANTS), Path(out))).runs
    except EgsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps({name: {**run.metrics, "digest": run.digest} for name, run in runs.items()}, indent=1))
