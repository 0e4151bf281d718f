"""On which nodes a pod may run, and nodes of one kind as a flavor for the engine.

Only labels that some pod's demands name tell nodes apart: others, such as a node's own name, would make each a kind. So
do devices, where the cluster has several kinds of them: a kind of nodes has what some pod's request would take.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from egs_core.kubernetes.devices import Tier, asked, asked_beside, flavors_for
from egs_core.kubernetes.pods import Node, Pod
from egs_core.kubernetes.texts import kept

NAME_FIELD = "metadata.name"
Key = str | Tier
"""By which nodes are told apart: a label, or what a request would take of their devices."""


def keys_of(wheres: Iterable[str]) -> frozenset[Key]:
    """The node labels that these demands name, and their requests of devices, whatever their number."""
    return frozenset[Key]().union(*map(_keys_of, wheres))


@kept
def _keys_of(where: str) -> frozenset[Key]:
    stated = _stated(where)
    found: set[Key] = {*stated.get("select", ())}
    for term in stated.get("terms", ()):
        found.update(str(one.get("key")) for one in term.get("matchExpressions") or ())
        found.update(str(one.get("key")) for one in term.get("matchFields") or ())
    asks = *asked(where), *asked_beside(where)
    found.update(msgspec.structs.replace(tier, count=1) for ask in asks for tier in ask)
    return frozenset(found)


@kept
def _stated(where: str) -> Mapping[str, Any]:
    """What `Pod.where` says; nobody changes it."""
    found: Mapping[str, Any] = json.loads(where) if where else {}
    return found


def telling(keys: Iterable[Key], nodes: Iterable[Node]) -> frozenset[Key]:
    """Those of the keys that may tell these nodes apart: a label that none of them has does not."""
    labels = {NAME_FIELD, *(label for node in nodes for label, _ in node.labels)}
    return frozenset(key for key in keys if isinstance(key, Tier) or key in labels)


def flavor_of(node: Node, keys: Collection[Key]) -> str:
    """The kind of a node, as far as demands that name these keys can tell."""
    stated: list[Any] = [(key, value) for key, value in _labels(node).items() if key in keys]
    tiers = [key for key in keys if isinstance(key, Tier)]
    took = {repr(tier): flavors_for([(tier,)], node) for tier in tiers}
    stated += [(text, flavors) for text, flavors in took.items() if flavors]
    text = json.dumps([sorted(stated), node.taints])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def said(node: Node, key: Key) -> object:
    """What a key says of a node: nodes of which all keys say the same are of one kind, but for their taints."""
    if isinstance(key, Tier):
        return flavors_for([(key,)], node)
    return _labels(node).get(key)


def usable(kinds: Mapping[str, Node], wheres: Iterable[str]) -> frozenset[str]:
    """Kinds without taints, and those on which some of these demands may run."""
    stated = list(wheres)
    return frozenset(
        kind for kind, node in kinds.items() if not node.taints or any(allows(where, node) for where in stated)
    )


def means_another(told: Collection[str], where: str, kinds: Mapping[str, Node], usable_kinds: frozenset[str]) -> bool:
    """Whether such pods may run on other kinds by now than was told of them. told: those that were, none: any."""
    fitting = frozenset(name for kind in usable_kinds for name in names_for(where, kind, kinds[kind]))
    if not told:
        return fitting != usable_kinds
    return fitting != frozenset(name for name in told if kind_of(name) in usable_kinds)


def names_for(where: str, kind: str, node: Node) -> tuple[str, ...]:
    """What the engine knows under which names of a node of that kind on which such a pod may run: the node, or those
    of its devices that it may have."""
    if not allows(where, node):
        return ()
    return tuple(device_name(kind, flavor) for flavor in flavors_of(where, node)) or (kind,)


def flavors_of(where: str, node: Node) -> tuple[str, ...]:
    """Of those of a node's devices that such a pod may have; none where it asks for none, or all are of one kind."""
    return flavors_for(asked(where), node) if node.is_apart else ()


def device_name(kind: str, flavor: str) -> str:
    """A flavor of devices on nodes of that kind."""
    return f"{kind}.{flavor}"


def kind_of(name: str) -> str:
    """The kind of nodes of such a name."""
    return name.partition(".")[0]


def flavor_of_device(name: str) -> str:
    """The flavor of devices of such a name."""
    return name.partition(".")[2]


def device_names(kind: str, node: Node) -> tuple[str, ...]:
    """Of each of a node's GPUs; none where all are of one kind."""
    return tuple(device_name(kind, flavor) for flavor in node.flavors) if node.is_apart else ()


def allows(where: str, node: Node) -> bool:
    """Whether selector, required affinity and tolerations of a pod let it onto the node, and that offers devices of all
    kinds that it asks for."""
    stated, labels = _stated(where), _labels(node)
    if any(labels.get(key) != str(value) for key, value in stated.get("select", {}).items()):
        return False
    terms = stated.get("terms")
    if terms and not any(_is_met(term, labels) for term in terms):
        return False
    if (asks := asked(where)) and not flavors_for(asks, node):
        return False
    if not all(flavors_for([ask], node) for ask in asked_beside(where)):
        return False
    return all(any(tolerates(one, taint) for one in stated.get("tolerate", ())) for taint in node.taints)


def may_ever_run(pod: Pod, nodes: Iterable[Node]) -> bool:
    """Whether some node that takes pods would have room for it if nothing else were there."""
    need = pod.shape
    return any(
        node.is_open
        and need.cpu_milli <= node.cpu_milli
        and _has_devices_for(pod, node)
        and need.memory_bytes <= node.memory_bytes
        and allows(pod.where, node)
        for node in nodes
    )


def _has_devices_for(pod: Pod, node: Node) -> bool:
    """As many of each kind as it asks for."""
    if not node.is_apart:
        return pod.shape.gpu_milli <= 1000 * node.gpus
    there = Counter(node.flavors)
    needs = [(flavors_of(pod.where, node), pod.shape.gpu_milli // 1000)]
    needs += [(flavors_for([ask], node), ask[0].count) for ask in asked_beside(pod.where)]
    return all(count <= sum(there[flavor] for flavor in may) for may, count in needs)


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
