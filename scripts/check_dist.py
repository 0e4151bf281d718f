"""Checks dist/ (`make dist`): what the distributions hold, and that each works where nothing else of EGS is.

Contents: a source distribution and its wheel hold every file of the package, and no other package; readme, licence
and `py.typed` are there. Then each wheel is installed into an environment of its own, which has only the packages that
the distribution asks for (links to those of the environment that runs this: the frameworks are large), and is used
once, from a folder outside of the repository.

    .venv/bin/python scripts/check_dist.py [DISTRIBUTION...]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email import message_from_bytes
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
EXAMPLES = ROOT / "examples"
BASE = Path(sysconfig.get_path("purelib"))
TIMEOUT_S = 240
CORE = "egs-core"


class CheckFailed(Exception):
    """What is wrong with a distribution, in one sentence."""


@dataclass(frozen=True)
class Product:
    """One distribution: its project's folder, its packages, and the uses that show that it works."""

    name: str
    project: Path
    package: str
    uses: tuple[tuple[str, ...], ...]
    others: tuple[str, ...] = ()  # further packages beside the one that is used
    files: tuple[str, ...] = ()  # single files beside the packages

    @property
    def wheel(self) -> Path:
        return self._built(".whl")

    @property
    def sdist(self) -> Path:
        return self._built(".tar.gz")

    def _built(self, suffix: str) -> Path:
        found = sorted(DIST.glob(f"{self.name.replace('-', '_')}-*{suffix}"))
        if len(found) != 1:
            raise CheckFailed(f"dist/ has {len(found)} files {suffix} of {self.name}, not one: run `make dist`")
        return found[0]


WORKLOAD = "workload.json"
WORKLOAD_TEXT = """{
  "format": "egs-workload", "version": 1, "id": "w",
  "tasks": [
    {"id": "load", "phases": [{"kind": "cpu", "duration_s": 2}]},
    {"id": "fit", "parents": ["load"], "phases": [{"kind": "cpu", "duration_s": 3}]}
  ]
}"""
PRODUCTS = (
    Product(
        CORE,
        ROOT,
        "egs_core",
        (
            ("egs", "simulate", WORKLOAD, "--slots", "2", "--runlog", "run.jsonl"),
            ("egs", "report", "run.jsonl", "-o", "report.html"),
        ),
    ),
    Product(
        "egs-ray",
        ROOT / "plugins" / "ray",
        "egs_ray",
        (("python", str(EXAMPLES / "03_phases.py")), ("egs", "doctor", "--json")),
        files=("egs_ray_hook.pth",),
    ),
    Product(
        "airflow-provider-egs",
        ROOT / "plugins" / "airflow",
        "egs_airflow",
        (
            ("airflow", "db", "migrate"),
            ("airflow", "egs", "doctor", "--json"),
            ("egs", "graph", str(EXAMPLES / "airflow" / "01_split.py"), "--from", "airflow"),
        ),
        others=("airflow_provider_egs",),
    ),
    Product(
        "egs-kubeflow",
        ROOT / "plugins" / "kubeflow",
        "egs_kubeflow",
        (
            ("python", str(EXAMPLES / "kubeflow" / "01_rewrite.py"), "pipeline.yaml"),
            ("egs", "kubeflow", "compile", "pipeline.yaml", "--profile", str(EXAMPLES / "kubeflow" / "site.yaml")),
            ("python", str(EXAMPLES / "kubeflow" / "03_phases.py")),
        ),
    ),
)


def main(names: Sequence[str]) -> int:
    """Check the distributions that are named, or all; 1 when one is not as it should be."""
    for product in PRODUCTS:
        if names and product.name not in names:
            continue
        try:
            check_contents(product)
            with tempfile.TemporaryDirectory(prefix="egs-dist-") as folder:
                check_use(product, Path(folder))
        except CheckFailed as problem:
            print(f"error: {product.name}: {problem}", file=sys.stderr)
            return 1
        print(f"{product.name}: complete; installed by itself and used")
    return 0


def check_contents(product: Product) -> None:
    """The package's files are in both archives, the metadata names readme and licence."""
    packages = (product.package, *product.others)
    expected = {f"{package}/{name}" for package in packages for name in package_files(product.project / package)}
    expected |= set(product.files)
    with zipfile.ZipFile(product.wheel) as wheel:
        names = set(wheel.namelist())
        meta = f"{product.wheel.name.rsplit('-', 3)[0]}.dist-info"
        metadata = message_from_bytes(wheel.read(f"{meta}/METADATA"))
    _equal("the wheel", {name for name in names if not name.startswith(meta)}, expected)
    with tarfile.open(product.sdist) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    beside = {"LICENSE", "README.md", "PKG-INFO", "pyproject.toml", "CHANGELOG.md", ".gitignore"}
    _equal("the source distribution", inside - beside, expected)
    if f"{meta}/licenses/LICENSE" not in names or not {"LICENSE", "README.md"} <= inside:
        raise CheckFailed("the licence or the readme is not in both archives")
    if metadata["Description-Content-Type"] != "text/markdown" or len(str(metadata.get_payload())) < 500:
        raise CheckFailed("the readme is not in the metadata")
    if f"{product.package}/py.typed" not in names:
        raise CheckFailed("py.typed is missing: its types would not be used")


def package_files(folder: Path) -> Iterator[str]:
    """The files of a package, relative to it, without what Python has compiled."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo"):
            yield path.relative_to(folder).as_posix()


def _equal(what: str, found: set[str], expected: set[str]) -> None:
    if missing := sorted(expected - found):
        raise CheckFailed(f"{what} lacks {', '.join(missing[:5])}")
    if more := sorted(found - expected):
        raise CheckFailed(f"{what} holds what is not of the package: {', '.join(more[:5])}")


def check_use(product: Product, folder: Path) -> None:
    """Install the wheel, with the core's where it needs that, and run its uses."""
    venv, home = folder / "venv", folder / "home"
    home.mkdir()
    _run([sys.executable, "-m", "venv", "--without-pip", str(venv)], home, {})
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)}))
    link_requirements(product, packages)
    link_programs(venv / "bin")
    core = next(one for one in PRODUCTS if one.name == CORE)
    wheels = [str(one.wheel) for one in dict.fromkeys((core, product))]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(venv / "bin" / "python")]
    _run([*pip, "install", "--quiet", "--no-index", *wheels], home, {})  # refuses what is asked for and not there
    (home / WORKLOAD).write_text(WORKLOAD_TEXT)
    environment = isolated(venv, home)
    where = _run(["python", "-c", f"import {product.package} as p; print(p.__file__)"], home, environment).strip()
    if not Path(where).is_relative_to(venv):
        raise CheckFailed(f"{product.package} was imported from {where}, not from the wheel")
    for use in product.uses:
        printed = _run(list(use), home, environment)
        recorded = Path(use[1]).with_suffix(".out")
        if use[0] == "python" and len(use) == 2 and printed != recorded.read_text():
            raise CheckFailed(f"{recorded.stem} printed {printed!r}, not what is recorded")


def link_requirements(product: Product, packages: Path) -> None:
    """Links to the packages that the distribution asks for, and to those that these ask for."""
    for found in requirements_of(product):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__", "bin"}:
            if not (packages / top).exists() and (BASE / top).exists():
                (packages / top).symlink_to(BASE / top)


def requirements_of(product: Product) -> list[Distribution]:
    """The installed distributions that a wheel's metadata asks for, directly or not, but for EGS's own."""
    own = {one.name for one in PRODUCTS}
    found: dict[str, Distribution] = {}
    open_ = [(product.name, frozenset[str]())]
    done: set[tuple[str, frozenset[str]]] = set()
    while open_:
        name, extras = entry = open_.pop()
        if entry in done:
            continue
        done.add(entry)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # pip refuses the installation if it is really needed
        if name not in own:
            found[name] = installed
        for line in installed.requires or ():
            wanted = Requirement(line)
            environments = [{"extra": extra} for extra in ("", *extras)]
            if wanted.marker is None or any(wanted.marker.evaluate(e) for e in environments):
                open_.append((_normal(wanted.name), frozenset(wanted.extras)))
    return list(found.values())


def link_programs(folder: Path) -> None:
    """The frameworks' own programs, started with the new environment's Python. EGS's come with its wheels."""
    for name in ("airflow", "ray"):
        source = Path(sysconfig.get_path("scripts")) / name
        if source.exists():
            _, _, body = source.read_text().partition("\n")
            (folder / name).write_text(f"#!{folder / 'python'}\n{body}")
            (folder / name).chmod(0o755)


def isolated(venv: Path, home: Path) -> dict[str, str]:
    """An environment without a trace of this repository or of the user's settings."""
    kept = {
        name: value for name, value in os.environ.items() if not re.match(r"EGS_|PYTHON|AIRFLOW|RAY_|VIRTUAL", name)
    }
    own = {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "AIRFLOW_HOME": str(home / "airflow")}
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "AIRFLOW__CORE__LOAD_EXAMPLES": "false"}
    return {**kept, **own, **quiet, "PATH": f"{venv / 'bin'}:/usr/local/bin:/usr/bin:/bin"}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a command prints; CheckFailed with the end of all its output when it fails."""
    env = environment or None
    path = environment.get("PATH", "")
    program = next((p for part in path.split(":") if (p := Path(part) / command[0]).is_file()), None) if path else None
    full = [str(program or command[0]), *command[1:]]
    done = subprocess.run(full, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise CheckFailed(
            f"`{' '.join(command[:4])}` ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
