"""What a phase changes in its process and a later one does not get: each is a process of its own, on a cluster a pod.

    random.seed(1)                before: seeded
    os.environ["LEVEL"] = "3"     before: set
    with egs.gpu():               here: neither, as no value of the function tells of them

Values are handed on; the state of modules and of the process is not. A warning names the line, when the function is
cut. It is found by what a statement calls and sets, so what a function of the author's own does inside is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from egs_core.notices import warn_once
from egs_core.splitting.block import own_nodes
from egs_core.splitting.source import Source

CALLS = frozenset(
    {
        "decimal.setcontext",
        "locale.setlocale",
        "logging.basicConfig",
        "logging.disable",
        "numpy.random.seed",
        "numpy.seterr",
        "os.chdir",
        "os.nice",
        "os.putenv",
        "os.umask",
        "os.unsetenv",
        "random.seed",
        "random.setstate",
        "resource.setrlimit",
        "signal.alarm",
        "signal.signal",
        "socket.setdefaulttimeout",
        "sys.setrecursionlimit",
        "time.tzset",
        "tensorflow.random.set_seed",
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
        "torch.manual_seed",
        "torch.set_default_device",
        "torch.set_default_dtype",
        "torch.set_num_threads",
        "torch.use_deterministic_algorithms",
        "transformers.set_seed",
        "warnings.filterwarnings",
        "warnings.simplefilter",
    }
)
HOLDERS = ("os.environ", "sys.path", "sys.modules", "warnings.filters")
"""What every function of a process shares, and has methods that change it."""
CHANGES = frozenset({"append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"})


def warn_of_lost_state(written: Sequence[tuple[Source, list[ast.stmt]]]) -> None:
    """Warn of each change of a phase that the next one does not make, too. written: each phase's statements."""
    changed = [list(_changes(source, body)) for source, body in written]
    for number, (source, _) in enumerate(written[:-1]):
        following = written[number + 1][1]
        if not any(isinstance(node, ast.Call) for statement in following for node in ast.walk(statement)):
            continue  # it calls nothing that could depend on it
        again = {name for _, name in changed[number + 1]}
        for node, name in changed[number]:
            if name not in again:
                problem = f"{name} is changed here, and each phase is a process of its own: the next one has not got it"
                warn_once(f"{source.place(node)}: {problem}; change it there, too, or in the phase that needs it")


def _changes(source: Source, body: Sequence[ast.stmt]) -> Iterator[tuple[ast.AST, str]]:
    """What changes state, and which, by the whole name of a module's member."""
    names = _imported(source.tree)
    for statement in body:
        for node in own_nodes(statement):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Call):
                name = _dotted(node.func, names)
                holder, _, method = name.rpartition(".")
                if name in CALLS:
                    yield node, name
                elif holder in HOLDERS and method in CHANGES:
                    yield node, holder
            elif isinstance(node, (ast.Assign, ast.Delete)):
                targets = node.targets
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
                targets = [node.target]
            for target in targets:
                if isinstance(target, (ast.Attribute, ast.Subscript)) and (name := _dotted(target, names)):
                    yield node, name


def _imported(tree: ast.AST) -> dict[str, str]:
    """What each name that is imported stands for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The whole name of a member of a module, or of what it is an item of; "" for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Subscript):
        return _dotted(node.value, names)
    if isinstance(node, ast.Attribute):
        inside = _dotted(node.value, names)
        return f"{inside}.{node.attr}" if inside else ""
    return ""
