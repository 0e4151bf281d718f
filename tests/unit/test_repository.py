"""The repository's own rules: import directions, what may stand in a file, and that every package says what it is."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core import __version__

ROOT = Path(__file__).resolve().parents[2]
TEXT = {"", ".py", ".toml", ".md", ".txt", ".sh", ".json", ".jsonl", ".html", ".css", ".js", ".yaml", ".yml", ".cfg"}
NOT_OURS = {".git", ".venv", "build", "dist", "node_modules"}

MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|home/\w+|root|Users/\w+)(?:/|\b)")
INDEX_ADDRESS = re.compile(r"--(?:extra-)?index-url|--find-links|\.org/simple|file://", re.I)


def tracked_files() -> list[Path]:
    """The files that belong to the repository: git's list, or all but caches where this is no git checkout."""
    git = shutil.which("git")
    if git is not None and (ROOT / ".git").exists():
        command = [git, "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
        if listed.returncode == 0:
            return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not _is_cache(path.relative_to(ROOT))]


def _is_cache(path: Path) -> bool:
    return any(part in NOT_OURS or part == "__pycache__" or part.endswith("_cache") for part in path.parts)


def lines_matching(pattern: re.Pattern[str]) -> Iterator[str]:
    """`file:line: text` of every line of a tracked text file that the pattern finds; this file states the patterns."""
    for path in tracked_files():
        if path.suffix not in TEXT or path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line):
                yield f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"


def source_files(*folders: str) -> list[Path]:
    """The Python files below the folders of the repository."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_import_contracts_hold() -> None:
    """No package imports against the direction that pyproject.toml states."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins" / "ray")}
    command = [sys.executable, "-c", program]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_machine_path_in_a_tracked_file() -> None:
    """Nothing depends on, or tells of, the machine it was made on."""
    assert list(lines_matching(MACHINE_PATH)) == []


def test_no_index_address_in_a_tracked_file() -> None:
    """Where packages come from is the user's affair; the repository names packages only."""
    assert list(lines_matching(INDEX_ADDRESS)) == []


@pytest.mark.parametrize("line", ["open('/Users/x')", "cd /root", "see /home/ann/egs"])
def test_machine_paths_are_recognised(line: str) -> None:
    """The pattern finds the paths it is there for."""
    assert MACHINE_PATH.search(line)


@pytest.mark.parametrize("line", ["work/s", "net/home/x.json", "the /workloads address", "./home/x", "a rootless run"])
def test_other_paths_are_no_machine_paths(line: str) -> None:
    """The pattern leaves relative paths and ordinary words alone."""
    assert not MACHINE_PATH.search(line)


def test_constraints_are_names_and_versions() -> None:
    """Every line pins one package, by name and version only, once, in order."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[0-9][0-9a-z.+!]*", line)] == []
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names))


def test_every_dependency_is_pinned() -> None:
    """What the projects ask for has a pin, so that two set-ups install the same."""
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert declared_dependencies() - pinned == set()


def declared_dependencies() -> set[str]:
    """Names of all dependencies and extras of the repository's projects, but for the projects themselves."""
    projects = [tomllib.loads(path.read_text())["project"] for path in project_files()]
    own = {project["name"] for project in projects}
    wanted = [line for project in projects for line in project["dependencies"]]
    for project in projects:
        wanted += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
    return {re.split(r"[\s<>=!~\[;]", line, maxsplit=1)[0].lower() for line in wanted} - own


def test_what_the_site_server_imports_comes_with_its_extras() -> None:
    """`pip install '.[server]'` is all that a GPU server is told to install: with it, GPUs are found, too. jwt and
    apprise are in extras of their own; starlette comes with fastapi."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["server"]
    there = {re.split(r"[\s<>=!~\[;]", line, maxsplit=1)[0].lower().replace("-", "_") for line in wanted}
    imported = {name for path in (ROOT / "egs_core/server").rglob("*.py") for name in modules_of(path)}
    others = imported - set(sys.stdlib_module_names) - {"egs_core", "jwt", "apprise", "starlette"}
    dists = {"pynvml": "nvidia_ml_py"}
    assert {dists.get(name, name) for name in others} - there == set()


def modules_of(path: Path) -> set[str]:
    """First words of what a file imports, at its beginning or later."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in named}


def project_files() -> list[Path]:
    """The pyproject.toml of the core and of every adapter."""
    return [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]


NAMES_A_FRAMEWORK = {
    "egs_core/copied_source.py": "hints run where no adapter is imported, and must know whose source is copied",
    "egs_core/engine/order/policy.py": "a policy has the name of the order that it copies",
    "egs_core/kubernetes/makers.py": "labels and kinds of pods' makers are names of Kubernetes' objects",
    "egs_core/testing/conformance/ordering.py": "an issue of a framework is the source of a scenario",
}


def test_the_core_names_no_framework() -> None:
    """What the core knows of frameworks comes from adapters: `--on`, the sources of an audit, help texts, errors."""
    named = re.compile(r"\b(airflow|kubeflow|kfp|ray)\b", re.IGNORECASE)
    found = {
        str(path.relative_to(ROOT))
        for path in source_files("egs_core")
        if named.search(path.read_text(encoding="utf-8"))
    }
    assert found == NAMES_A_FRAMEWORK.keys()


def test_every_package_says_what_it_is() -> None:
    """Each package folder has an `__init__.py` with a docstring."""
    packages = {path.parent for path in source_files("egs_core", *plugin_packages(), "benchmarks")}
    silent = [str(p.relative_to(ROOT)) for p in sorted(packages) if not docstring_of(p / "__init__.py")]
    assert silent == []


def plugin_packages() -> list[str]:
    """The adapters' package folders, relative to the repository."""
    return [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("plugins/*/egs_*")) if path.is_dir()]


def docstring_of(path: Path) -> str:
    """The module docstring of a file; empty when it has none or does not exist."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "") if path.is_file() else ""


def test_the_engine_uses_no_global_randomness() -> None:
    """`random` appears in the engine only as the seeded `random.Random`, so that a replay is identical."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: random.{node.attr}"
        for path in source_files("egs_core/engine", "egs_core/sim")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
        if node.attr not in {"Random"}
    ]
    assert found == []


def test_adapters_use_public_names_of_the_core() -> None:
    """An adapter imports no `_private` module or name from `egs_core`."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.module} {alias.name}"
        for path in source_files(*plugin_packages())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "egs_core"
        for alias in node.names
        if any(part.startswith("_") and part != "__version__" for part in [*(node.module or "").split("."), alias.name])
    ]
    assert found == []


def test_the_versions_agree() -> None:
    """The adapters need the core of their own minor version, which the core then is."""
    minor = ".".join(__version__.split(".")[:2])
    for path in project_files()[1:]:
        needs = [d for d in tomllib.loads(path.read_text())["project"]["dependencies"] if d.startswith("egs-core")]
        assert needs == [f"egs-core>={minor}.0,<0.{int(minor.split('.')[1]) + 1}"], path


def test_every_decision_is_listed_once() -> None:
    """docs/decisions/README.md has one line for each record, by its title, with what has taken its place since; a line
    for nothing else. What is missing is shown as it has to be."""
    folder = ROOT / "docs" / "decisions"
    listed = Counter(line for line in (folder / "README.md").read_text().splitlines() if line.startswith("- "))
    wanted = Counter(line_of_decision(path.name, path.read_text()) for path in folder.glob("[0-9]*.md"))
    assert list(wanted - listed) == [], "write these lines under their subjects in docs/decisions/README.md"
    assert list(listed - wanted) == [], "these are of no record, or there twice"


def line_of_decision(name: str, text: str) -> str:
    """Of a record in the list. The lines in italics below its heading name its successors."""
    heading, *rest = text.split("\n\n")
    number, title = heading.removeprefix("# ").split(". ", 1)
    note = " ".join(itertools.takewhile(lambda part: re.match(r"\*[^*]", part), rest))
    successors = dict.fromkeys(re.findall(r"\]\(([0-9]{4}-[^)]+)\)", note))
    how = "superseded" if note.startswith("*Superseded") else "changed"
    by = ", ".join(f"[{int(one[:4])}]({one})" for one in successors)
    return f"- [{number}]({name}): {title}" + (f"; {how} by {by}" if by else "")


@pytest.mark.parametrize(
    ("below", "told"),
    [
        (
            "*Superseded. It was a gate: [b](0008-b.md), [c](0009-c.md).*",
            "; superseded by [8](0008-b.md), [9](0009-c.md)",
        ),
        ("*How many, see [b](0008-b.md).*\n\n*And [c](0009-c.md).*", "; changed by [8](0008-b.md), [9](0009-c.md)"),
        ("**Decided.** As [b](0008-b.md) has it.", ""),
        ("## Context\n\n*See* [b](0008-b.md).", ""),
    ],
)
def test_what_has_taken_a_decisions_place_is_read(below: str, told: str) -> None:
    """From the lines in italics below its heading alone: other links are no successors."""
    line = line_of_decision("0007-a.md", f"# 7. A gate. Once\n\n{below}\n\nMore [d](0010-d.md).\n")
    assert line == f"- [7](0007-a.md): A gate. Once{told}"
