"""The layout as its imports draw it, type-only imports counted: no circle anywhere, and an engine of few rooms.

import-linter leaves type-only imports out everywhere or nowhere, and the adapters use some that lead to frameworks.
Imports inside functions are counted for circles, too: they bind nothing when a module is loaded, and still two modules
that need each other cannot be understood one by one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    ROOT / "egs_core",
    ROOT / "plugins/ray/egs_ray",
    ROOT / "plugins/airflow/egs_airflow",
    ROOT / "plugins/kubeflow/egs_kubeflow",
)
ENGINE = "egs_core.engine"
FLOORS = (
    "specs",
    "meters",
    "messages",
    "state",
    "rules",
    "order",
    "passes",
    "explain",
    "engine",
)  # each imports only leftwards
NOT_PUBLIC = ("cli", "driver", "engine", "sim", "testing")
MOST_ROOMS, MOST_ARROWS = 14, 50

Imports = dict[str, set[str]]


def name_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements that run, or are read for types, when a module is loaded."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def targets(node: ast.AST, known: set[str]) -> Iterator[str]:
    """The modules that an import names; of `from package import module` the module, of `import_module("x")` x."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
        yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in known else node.module


class Read(NamedTuple):
    """What each module imports when it is loaded, and what it imports at all."""

    loading: Imports
    ever: Imports


@cache
def read() -> Read:
    """All modules, each read once; none is kept, as the search for garbage would go through it."""
    paths = {name_of(path, package): path for package in PACKAGES for path in package.rglob("*.py")}
    known = set(paths)
    found = Read({}, {})
    for name, path in paths.items():
        tree = ast.parse(path.read_text())
        for imports, nodes in ((found.loading, statements(tree.body)), (found.ever, ast.walk(tree))):
            imports[name] = {target for node in nodes for target in targets(node, known) if target in known}
    return found


@pytest.fixture(scope="module")
def graph() -> Imports:
    return read().loading


def circle_in(graph: Imports) -> list[str]:
    """Modules that import each other in a ring; none where there is no such ring."""
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        pending = [(start, iter(sorted(graph[start])))] if start not in done else []
        path += [start] if pending else []
        while pending:
            following = next(pending[-1][1], None)
            if following is None:
                done.add(path.pop())
                pending.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                pending.append((following, iter(sorted(graph[following]))))
    return []


def test_no_module_imports_itself_by_way_of_others(graph: Imports) -> None:
    assert circle_in(graph) == []


def test_no_import_inside_a_function_closes_a_circle() -> None:
    """A module that is loaded late, or by its name, is not one that is needed both ways."""
    others = {name: imported - {name} for name, imported in read().ever.items()}
    assert "egs_ray.compat" in others["egs_ray.adapter"]  # by its name
    assert circle_in(others) == []


def test_the_example_adapter_is_small_and_imports_the_public_surface_only() -> None:
    """At most 300 lines; nothing of how the engine, its driver, the simulator and the command line are made."""
    text = (ROOT / "examples/adapter/egs_dagster.py").read_text()
    known = {name for name in read().ever if name.startswith("egs_core")}
    used = {target for node in ast.walk(ast.parse(text)) for target in targets(node, known)}
    assert len(text.splitlines()) <= 300
    assert {one for one in used if one.startswith(("egs_core.adapter", "egs_core.runlog.past"))}
    assert not [one for one in used if one.startswith(tuple(f"egs_core.{room}" for room in NOT_PUBLIC))]


def test_a_circle_would_be_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def rooms(graph: Imports) -> Imports:
    """The engine's modules and packages at its top, and which of them imports which."""
    found: Imports = {}
    for name, imported in graph.items():
        if name.startswith(f"{ENGINE}."):
            room = name.removeprefix(f"{ENGINE}.").partition(".")[0]
            others = {i.removeprefix(f"{ENGINE}.").partition(".")[0] for i in imported if i.startswith(f"{ENGINE}.")}
            found.setdefault(room, set()).update(others - {room})
    return found


def test_the_engine_has_few_rooms_and_each_imports_only_those_below_it(graph: Imports) -> None:
    found = rooms(graph)
    assert set(found) == set(FLOORS)
    upwards = {
        (room, other) for room, others in found.items() for other in others if FLOORS.index(other) > FLOORS.index(room)
    }
    assert not upwards
    assert len(found) <= MOST_ROOMS
    assert sum(map(len, found.values())) <= MOST_ARROWS


def test_nothing_in_the_engine_imports_its_front(graph: Imports) -> None:
    """`egs_core.engine` itself names what others use; inside, each module names where a thing is."""
    assert [name for name, imported in graph.items() if name.startswith(f"{ENGINE}.") and ENGINE in imported] == []
