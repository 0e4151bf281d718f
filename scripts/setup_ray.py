"""Makes `.venv-ray-VERSION`: another version of Ray over everything that the environment running this has.

    .venv/bin/python scripts/setup_ray.py 2.59.0

Only Ray itself is installed, without its dependencies: those pinned serve every version of Ray that EGS knows. All
other packages, and EGS's own source, come from the environment of the Python that runs this.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(version: str) -> int:
    """Bring the environment up to date; 0 when it is, 1 when it cannot be."""
    venv = ROOT / f".venv-ray-{version}"
    with (ROOT / ".venv-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _found(venv) == [version, *_python()]:
            return 0
        print(f"setting up {venv.name} …", file=sys.stderr, flush=True)
        try:
            _build(venv, version)
        except subprocess.CalledProcessError as error:
            print(f"error: {venv.name} could not be set up (exit code {error.returncode})", file=sys.stderr)
            return 1
    return 0


def _build(venv: Path, version: str) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    folder = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
    base = sysconfig.get_path("purelib")
    # Read last, so its own Ray comes first; `addsitedir` also reads what makes EGS's packages editable.
    (Path(folder) / "zz-base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--python"]
    python = str(venv / "bin" / "python")
    subprocess.run([*pip, python, "install", "--no-deps", "--ignore-installed", f"ray=={version}"], check=True)


def _python() -> list[str]:
    """What the environment cannot survive a change of."""
    return [sys.base_prefix, sys.version.splitlines()[0]]


def _found(venv: Path) -> list[str]:
    """Ray's version as the environment sees it, and which Python it is; nothing when it does not start."""
    program = "import sys, importlib.metadata as m\n"
    program += "print(m.version('ray'), sys.base_prefix, sys.version.splitlines()[0], sep='\\n')"
    python = str(venv / "bin" / "python")
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
