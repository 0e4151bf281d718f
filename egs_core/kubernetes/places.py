"""On which nodes a pod may run, and nodes of one kind as a flavor for the engine.

Only labels that some pod's demands name tell nodes apart: others, such as a node's own name, would make each a kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from egs_core.kubernetes.pods import Node, Pod

NAME_FIELD = "metadata.name"


def keys_of(wheres: Iterable[str]) -> frozenset[str]:
    """The node labels that these demands name."""
    found: set[str] = set()
    for where in wheres:
        stated = json.loads(where) if where else {}
        found.update(stated.get("select", ()))
        for term in stated.get("terms", ()):
            found.update(str(one.get("key")) for one in term.get("matchExpressions") or ())
            found.update(str(one.get("key")) for one in term.get("matchFields") or ())
    return frozenset(found)


def flavor_of(node: Node, keys: Collection[str]) -> str:
    """The kind of a node, as far as demands that name these labels can tell."""
    stated: list[Any] = [(key, value) for key, value in _labels(node).items() if key in keys]
    text = json.dumps([sorted(stated), node.taints])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def usable(kinds: Mapping[str, Node], wheres: Iterable[str]) -> frozenset[str]:
    """Kinds without taints, and those on which some of these demands may run."""
    stated = list(wheres)
    return frozenset(
        kind for kind, node in kinds.items() if not node.taints or any(allows(where, node) for where in stated)
    )


def means_another(told: Collection[str], where: str, kinds: Mapping[str, Node], usable_kinds: frozenset[str]) -> bool:
    """Whether such pods may run on other kinds by now than was told of them. told: those that were, none: any."""
    fitting = frozenset(kind for kind in usable_kinds if allows(where, kinds[kind]))
    return fitting != (usable_kinds & frozenset(told) if told else usable_kinds)


def allows(where: str, node: Node) -> bool:
    """Whether selector, required affinity and tolerations of a pod let it onto the node."""
    stated = json.loads(where) if where else {}
    labels = _labels(node)
    if any(labels.get(key) != str(value) for key, value in stated.get("select", {}).items()):
        return False
    terms = stated.get("terms")
    if terms and not any(_is_met(term, labels) for term in terms):
        return False
    return all(any(tolerates(one, taint) for one in stated.get("tolerate", ())) for taint in node.taints)


def may_ever_run(pod: Pod, nodes: Iterable[Node]) -> bool:
    """Whether some node that takes pods would have room for it if nothing else were there."""
    need = pod.shape
    return any(
        node.is_open
        and need.cpu_milli <= node.cpu_milli
        and need.gpu_milli <= 1000 * node.gpus
        and need.memory_bytes <= node.memory_bytes
        and allows(pod.where, node)
        for node in nodes
    )


def _labels(node: Node) -> dict[str, str]:
    return {**dict(node.labels), NAME_FIELD: node.name}


def _is_met(term: dict[str, Any], labels: dict[str, str]) -> bool:
    stated = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return bool(stated) and all(_holds(one, labels) for one in stated)


def _holds(one: dict[str, Any], labels: dict[str, str]) -> bool:
    value, values, operator = (
        labels.get(str(one.get("key"))),
        [str(v) for v in one.get("values") or ()],
        one.get("operator"),
    )
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    try:
        found, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return found > bound if operator == "Gt" else operator == "Lt" and found < bound


def tolerates(one: Mapping[str, Any], taint: tuple[str, str, str]) -> bool:
    """Whether a toleration of a pod lets it onto a node with that taint: key, value, effect."""
    key, value, effect = taint
    if one.get("effect") and one["effect"] != effect:
        return False
    if one.get("operator") == "Exists":
        return not one.get("key") or one["key"] == key
    return one.get("key") == key and (one.get("value") or "") == value
