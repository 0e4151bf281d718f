"""A graph as text that other tools draw: Mermaid and Graphviz DOT. Phases are shown, tasks with a GPU phase marked.

Nodes are called t0, t1, …, so an id may hold anything; labels are escaped.
"""

from __future__ import annotations

from egs_core.graph.columns import GPU, Graph, Shape


def to_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart; tasks with a GPU phase have the class `gpu`."""
    lines = ["flowchart LR"]
    for task in range(graph.n_tasks):
        lines.append(f'  t{task}["{"<br/>".join(_mermaid_text(line) for line in _label(graph, task))}"]')
    lines += [f"  t{parent} --> t{task}" for task, parents in enumerate(graph.parents) for parent in parents]
    gpu_tasks = [f"t{task}" for task in range(graph.n_tasks) if uses_gpu(graph, task)]
    if gpu_tasks:
        lines += ["  classDef gpu fill:#76b900,stroke:#3d6000,color:#000", f"  class {','.join(gpu_tasks)} gpu"]
    return "\n".join(lines) + "\n"


def to_dot(graph: Graph, name: str = "workload") -> str:
    """A Graphviz digraph; tasks with a GPU phase are filled."""
    lines = [f"digraph {_dot_text(name)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for task in range(graph.n_tasks):
        marks = ', style=filled, fillcolor="#76b900"' if uses_gpu(graph, task) else ""
        label = _dot_text("\n".join(_label(graph, task)))
        lines.append(f"  t{task} [label={label}{marks}];")
    lines += [f"  t{parent} -> t{task};" for task, parents in enumerate(graph.parents) for parent in parents]
    return "\n".join(lines) + "\n}\n"


def uses_gpu(graph: Graph, task: int) -> bool:
    """Whether any phase of the task is a GPU phase."""
    return any(graph.phase_kind[phase] == GPU for phase in graph.phases_of(task))


def _label(graph: Graph, task: int) -> list[str]:
    """The id, then one line a phase."""
    return [graph.ids[task]] + [_phase_text(graph, phase) for phase in graph.phases_of(task)]


def _phase_text(graph: Graph, phase: int) -> str:
    seconds, shape = graph.phase_duration_s[phase], graph.shapes[graph.phase_shape[phase]]
    return f"{_amount_text(shape)} · {'unknown' if seconds is None else f'{seconds:g} s'}"


def _amount_text(shape: Shape) -> str:
    parts = [f"{shape.gpu_milli / 1000:g} GPU"] if shape.gpu_milli else []
    parts += [f"{shape.cpu_milli / 1000:g} CPU"] if shape.cpu_milli else []
    return " + ".join(parts) or f"{shape.memory_bytes} bytes"


def _mermaid_text(text: str) -> str:
    """Mermaid reads entities inside quotes; everything that could end the quotes or mean markup becomes one."""
    return "".join(c if c.isalnum() or c in " _-.,:+·" else f"#{ord(c)};" for c in text)


def _dot_text(text: str) -> str:
    """A DOT string; a line break starts a new centred line, other control characters are dropped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(c for c in escaped if c.isprintable()) + '"'
