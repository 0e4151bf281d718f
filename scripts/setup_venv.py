"""Sets up `.venv`: EGS and its adapters (editable) with the pinned development tools.

Standard library only: this runs before anything is installed. It does nothing when `.venv` is up to date, so every
make target can call it first. Two targets at once are safe: the second waits on a lock that the operating system
releases even when its holder is killed. The stamp is written last, so a half-made `.venv` has none and is rebuilt.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "egs-stamp"
LOG = VENV / "egs-setup.log"
PROJECTS = [
    ".[dev,docs,demo,bench,gpu,alerts,oidc,server]",
    "./plugins/ray[dev]",
    "./plugins/airflow[celery,edge]",
    "./plugins/kubeflow",
]
PROJECT_FILES = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]


def main() -> int:
    """Bring `.venv` up to date; 0 when it is, 1 when it cannot be."""
    with (ROOT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        place, content = _place(), _content()
        if _stamp() == [place, content] and _runs():
            return 0
        try:
            _build(place, content)
        except subprocess.CalledProcessError as error:
            return _explain(error)
        except KeyboardInterrupt:
            return 130
    return 0


def _build(place: str, content: str) -> None:
    fresh = _stamp()[:1] != [place] or not _runs()
    told = f"setting up .venv with Python {sys.version.split()[0]} …"
    print(f"{told} this takes some minutes; what it does: {LOG}", file=sys.stderr, flush=True)
    STAMP.unlink(missing_ok=True)
    if fresh:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([_base_python(), "-m", "venv", str(VENV)], check=True)
    editable = [word for project in PROJECTS for word in ("-e", project)]
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    with LOG.open("w") as log:
        command = [*pip, "--no-compile", "-c", "constraints.txt", *editable]
        subprocess.run(command, check=True, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        # pip would compile on one processor, and what some packages bring as tests too; not all of it is valid.
        command = [str(PYTHON), "-m", "compileall", "-q", "-j", "0", "-x", r"[/\\]tests?[/\\]", str(_packages())]
        subprocess.run(command, check=False, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
    STAMP.write_text(f"{place}\n{content}\n")


def _packages() -> Path:
    """Where pip puts them."""
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(VENV), "platbase": str(VENV)}))


def _place() -> str:
    """Hash of what requires a new environment: its folder and its Python."""
    return hashlib.sha256(f"{VENV}|{sys.version}|{sys.base_prefix}".encode()).hexdigest()


def _content() -> str:
    """Hash of what requires an update of the environment: what the projects ask for, and the pins."""
    files = [tomllib.loads(path.read_text(encoding="utf-8")) for path in PROJECT_FILES]
    asked = [str((f["project"], f["build-system"], f["tool"]["hatch"])).encode() for f in files]  # no other tool's
    pins = [path.read_bytes() for path in (ROOT / "constraints.txt", Path(__file__))]
    return hashlib.sha256(b"\0".join([*asked, *pins])).hexdigest()


def _stamp() -> list[str]:
    return STAMP.read_text().split() if STAMP.is_file() else []


def _runs() -> bool:
    """Whether the environment's Python starts; the Python that it was made from may have been removed."""
    try:
        return subprocess.run([str(PYTHON), "-c", ""], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _base_python() -> str:
    """The base Python, also when this runs inside a virtual environment (perhaps the one that is rebuilt)."""
    return getattr(sys, "_base_executable", None) or sys.executable


def _explain(error: subprocess.CalledProcessError) -> int:
    lines = LOG.read_text(errors="replace").splitlines() if LOG.is_file() else []
    problems = [line for line in lines if line.startswith("ERROR")] or lines[-5:]
    print(*problems, sep="\n", file=sys.stderr)
    print(f"error: .venv could not be set up (exit code {error.returncode}; all output: {LOG})", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
