"""Makes `.venv-FRAMEWORK-VERSION`: another version of a framework, and all other packages of the current environment.

    .venv/bin/python scripts/setup_version.py ray 2.59.0
    .venv/bin/python scripts/setup_version.py airflow 3.2.2
    .venv/bin/python scripts/setup_version.py kfp 2.17.3
    .venv/bin/python scripts/setup_version.py dagster 1.13.29

Only the framework's own packages are installed, without their dependencies: the pinned ones work with every version
that EGS supports. All other packages, and EGS itself, are symbolic links into the current environment. A `.pth` entry
instead of links would not work: Python would find parts of Airflow there that only the newer version has.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = Path(sysconfig.get_path("purelib"))
OWN = {
    "ray": {"ray": "=={version}"},
    "airflow": {
        "apache-airflow": "=={version}",
        "apache-airflow-core": "=={version}",
        "apache-airflow-task-sdk": "==1.{minor}",  # 1.2.2 is that of Airflow 3.2.2
        "aiosqlite": "<0.22",  # Airflow 3.2 asks for it, 3.3 for a newer one
    },
    "kfp": {"kfp": "=={version}", "kfp-kubernetes": "=={version}"},
    "dagster": {  # for the example of a fourth adapter; what Dagster needs and `.venv` has not
        "dagster": "=={version}",
        "dagster-pipes": "=={version}",
        "dagster-shared": "=={version}",
        "antlr4-python3-runtime": "==4.13.2",
        "coloredlogs": "==14.0",
        "grpcio-health-checking": "==1.85.1",
        "humanfriendly": "==10.0",
        "tomli": "==2.5.0",
        "toposort": "==1.10",
        "tqdm": "==4.70.1",
    },
}
"""Framework -> its packages that differ between versions, with their version specifiers."""
EXAMPLES = {"dagster": ROOT / "examples" / "adapter"}
"""Framework -> an adapter that is no part of the environment, and is installed there as its users would."""


def main(framework: str, version: str) -> int:
    """Bring the environment up to date; 0 when it is, 1 when it cannot be."""
    venv = ROOT / f".venv-{framework}-{version}"
    with (ROOT / f".venv-{framework}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = venv / "egs-stamp", _wanted(framework)
        if stamp.is_file() and stamp.read_text() == wanted and _starts(venv):
            return 0
        print(f"setting up {venv.name} …", file=sys.stderr, flush=True)
        try:
            _build(venv, framework, version)
        except subprocess.CalledProcessError as error:
            print(f"error: {venv.name} could not be set up (exit code {error.returncode})", file=sys.stderr)
            return 1
        stamp.write_text(wanted)
    return 0


def _build(venv: Path, framework: str, version: str) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "--python", python]
    _, _, minor = version.partition(".")
    wanted = [name + asked.format(version=version, minor=minor) for name, asked in OWN[framework].items()]
    subprocess.run([*pip, "install", "--no-deps", *wanted], check=True)
    _link(Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})), framework)
    if framework in EXAMPLES:  # as a wheel, built by the linked hatchling
        with tempfile.TemporaryDirectory() as folder:  # a build leaves nothing in the checkout
            source = shutil.copytree(EXAMPLES[framework], Path(folder) / "source")
            subprocess.run([*pip, "install", "--no-deps", "--no-build-isolation", str(source)], check=True)
    for program in Path(sysconfig.get_path("scripts")).iterdir():  # uv looks for its own beside its package
        if not (venv / "bin" / program.name).exists():
            (venv / "bin" / program.name).symlink_to(program)


def _link(packages: Path, framework: str) -> None:
    """Link the packages of all other distributions, also files that they keep inside a folder of the framework."""
    found = [
        *distributions(path=[str(packages)]),
        *(d for d in distributions(path=[str(BASE)]) if d.name in OWN[framework]),
    ]
    own = {file.parts for one in found for file in one.files or ()}
    tops = {parts[0] for parts in own} - {".."}
    for entry in BASE.iterdir():
        if entry.name not in tops:
            (packages / entry.name).symlink_to(entry)
    seconds = {parts[:2] for parts in own}
    for top in tops:
        for entry in (BASE / top).iterdir() if (packages / top).is_dir() and (BASE / top).is_dir() else ():
            if (top, entry.name) not in seconds and entry.name != "__pycache__":
                (packages / top / entry.name).symlink_to(entry)


def _wanted(framework: str) -> str:
    """Hash of everything that requires a new environment: Python, the linked packages, this script."""
    names = "\n".join(sorted(entry.name for entry in BASE.iterdir()))
    asked = [sys.base_prefix, sys.version, str(BASE), names, str(OWN[framework]), Path(__file__).read_text()]
    if framework in EXAMPLES:
        asked += [path.read_text() for path in sorted(EXAMPLES[framework].glob("*.*"))]
    return hashlib.sha256("|".join(asked).encode()).hexdigest()


def _starts(venv: Path) -> bool:
    """Whether its Python starts; the Python that it was made from may have been removed."""
    try:
        return subprocess.run([venv / "bin" / "python", "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
