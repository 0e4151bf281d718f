"""Builds dist/: a source distribution and a wheel of egs-core and of every adapter.

Each wheel is built from the source distribution, so a file that is missing there is missing in the wheel as well. The
build backend comes from the environment that runs this: no network is needed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]


def main() -> int:
    """Build every project into an empty dist/; the exit code of the first build that fails."""
    shutil.rmtree(DIST, ignore_errors=True)
    for project in PROJECTS:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(project)]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            print(done.stdout, f"error: {project.name} could not be built", sep="\n", file=sys.stderr)
            return done.returncode
    for path in sorted(DIST.iterdir()):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
