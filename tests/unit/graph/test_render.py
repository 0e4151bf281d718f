"""Mermaid and DOT: nodes, edges, phases, marks, and ids that try to break out of their label."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_core.graph.render import to_dot, to_mermaid


def sample(task_id: str = "train") -> Graph:
    """A CPU task before a task with a CPU and a GPU phase."""
    graph = Graph()
    graph.add_task("load", (), ((CPU, Shape(), None),))
    graph.add_task(task_id, (0,), ((CPU, Shape(500), 1.0), (GPU, Shape(1000, 2000), 1.5)))
    return graph


def test_mermaid_shows_phases_edges_and_gpu_tasks() -> None:
    """The whole text for two tasks."""
    assert to_mermaid(sample()) == (
        "flowchart LR\n"
        '  t0["load<br/>1 CPU · unknown"]\n'
        '  t1["train<br/>0.5 CPU · 1 s<br/>2 GPU + 1 CPU · 1.5 s"]\n'
        "  t0 --> t1\n"
        "  classDef gpu fill:#76b900,stroke:#3d6000,color:#000\n"
        "  class t1 gpu\n"
    )


def test_dot_shows_phases_edges_and_gpu_tasks() -> None:
    """The whole text for two tasks."""
    assert to_dot(sample(), "my flow") == (
        'digraph "my flow" {\n'
        "  rankdir=LR;\n"
        "  node [shape=box];\n"
        '  t0 [label="load\\n1 CPU · unknown"];\n'
        '  t1 [label="train\\n0.5 CPU · 1 s\\n2 GPU + 1 CPU · 1.5 s", style=filled, fillcolor="#76b900"];\n'
        "  t0 -> t1;\n"
        "}\n"
    )


def test_ids_cannot_break_out() -> None:
    """Quotes, brackets, markup and line breaks in an id stay inside its label."""
    nasty = 'a"]; x --> y\n<b>\\'
    mermaid, dot = to_mermaid(sample(nasty)), to_dot(sample(nasty))
    assert "#34;#93;#59; x --#62; y#10;#60;b#62;#92;" in mermaid
    assert 'label="a\\"]; x --> y\\n<b>\\\\\\n0.5 CPU' in dot


@given(st.text(min_size=1, max_size=20))
def test_any_id_gives_the_same_lines(task_id: str) -> None:
    """Whatever the id: every line of both outputs has its known shape, so nothing was injected."""
    line = r'flowchart LR|  t\d+\["[^"\[\]<>]*(<br/>[^"\[\]<>]*)+"\]|  t0 --> t1|  class(Def)? .*'
    assert all(re.fullmatch(line, row) for row in to_mermaid(sample(task_id)).split("\n")[:-1])
    line = r'digraph "workload" \{|  rankdir=LR;|  node .*|  t\d+ \[label="(\\.|[^"\\])*".*\];|  t0 -> t1;|\}'
    assert all(re.fullmatch(line, row) for row in to_dot(sample(task_id)).split("\n")[:-1])
