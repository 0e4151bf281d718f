"""Names of Argo's nodes: which are tries or iterations of one step, and what its step is called in every run.

nightly-17.root.loop(3:x).train.executor(1)      a node: the second try, in the fourth iteration
nightly-17.root.loop(3:x).train.executor         without its try
nightly-17.root.loop.train.executor              its step
           root.loop.train.executor              the same in every run
"""

from __future__ import annotations

import re

_TRY = re.compile(r"\(\d+\)$")
_ALL_ITERATIONS = re.compile(r"\(\d+:[^()]*\)")


def key_of(name: str) -> str:
    """The name of a node without iterations and tries.

    >>> key_of("run.root.loop(3:x).train.executor(1)")
    'run.root.loop.train.executor'
    """
    return _TRY.sub("", _ALL_ITERATIONS.sub("", name))


def without_try(name: str) -> str:
    """The name of a node, the same for all tries of it.

    >>> without_try("run.root.loop(3:x).train.executor(1)")
    'run.root.loop(3:x).train.executor'
    """
    return _TRY.sub("", name)


def in_any_run(workflow: str, name: str) -> str:
    """The name of a node's step without that of its Workflow; "." for the Workflow's own node.

    >>> in_any_run("run", "run.root.loop(3:x).train.executor(1)"), in_any_run("run", "run(0)")
    ('root.loop.train.executor', '.')
    """
    return key_of(name).removeprefix(workflow).removeprefix(".") or "."
