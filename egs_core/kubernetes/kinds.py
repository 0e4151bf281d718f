"""The kinds of nodes that a site tells apart, and on which of them it was told that pods may run.

Names of kinds follow from the keys by which nodes are told apart (`places`), so that other keys need another site. One
that says the same of all nodes of a kind, for each kind, is no other key: whoever may make pods may ask for something
new with each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import is_not

from egs_core.kubernetes import places
from egs_core.kubernetes.compared import Kept, changed
from egs_core.kubernetes.pods import Node, Pod

NOWHERE = ("nowhere",)
"""A kind that no node is of: what no node can take is granted none."""


class Kinds:
    """See the module. told: kinds of nodes by what pods say of these (`Pod.where`); none: any. wheres: what pods of
    ours say now."""

    def __init__(self, keys: frozenset[places.Key] = frozenset()) -> None:
        self.keys = keys
        self.told: Mapping[str, tuple[str, ...]] = {}
        self._of: dict[str, tuple[Node, str]] = {}  # by node's name, as it was last seen
        self._nodes: list[Node] = []
        self._compared: object = None  # what was there when it was last looked whether what was told still holds
        self._alike: dict[places.Key, dict[str, object]] = {}  # what a key says of each kind, of those that split none
        self._last: dict[str, Node] = {}  # of which it says that
        self._keys = Kept(places.keys_of)
        self._telling = Kept(places.telling)
        self._there = Kept(self._kinds_of)
        self._demands = Kept(_demands)
        self._usable = Kept(places.usable)

    def of(self, node: Node) -> str:
        """Kept, as it costs more than all else that is looked at of a node that has not changed."""
        kept = self._of.get(node.name)
        if kept is None or kept[0] is not node:
            kept = self._of[node.name] = node, places.flavor_of(node, self.keys)
        return kept[1]

    def forget(self, name: str) -> None:
        """This node is gone."""
        self._of.pop(name, None)

    def wanted(self, wheres: frozenset[str], nodes: list[Node]) -> frozenset[places.Key]:
        """The keys that are needed so that nodes of one kind are alike for each of these demands."""
        keys = self._keys(wheres)
        if keys <= self.keys:
            return keys
        telling = self.telling(wheres, nodes)
        return (telling & self.keys) | self._splitting(telling - self.keys, nodes)

    def telling(self, wheres: frozenset[str], nodes: list[Node]) -> frozenset[places.Key]:
        """The keys that may tell some nodes apart for these demands."""
        return self._telling(self._keys(wheres), self._listed(nodes))

    def there(self, nodes: list[Node]) -> dict[str, Node]:
        """The kinds of nodes that take pods, each with one of them; the same object while the nodes are."""
        return self._there(self._listed(nodes))

    def usable(self, wheres: frozenset[str], nodes: list[Node]) -> frozenset[str]:
        """Those that some pod of ours tolerates."""
        return self._usable(self.there(nodes), self._demands(wheres, self.told))

    def closed(self, wheres: frozenset[str], nodes: list[Node]) -> frozenset[str]:
        """Of nodes that have taints which none of ours tolerates: they take nothing."""
        tainted = (kind for kind, node in self.there(nodes).items() if node.taints)
        return frozenset(tainted) - self.usable(wheres, nodes)

    def mean_another(self, wheres: frozenset[str], waiting: Collection[str], nodes: list[Node]) -> bool:
        """Whether kinds of nodes have come on which some of what waits may run, or may not, unlike what was told."""
        kinds = self.there(nodes)
        compared = kinds.keys(), wheres, waiting
        if compared == self._compared:
            return False
        self._compared = compared
        usable = self.usable(wheres, nodes)
        return any(places.means_another(self.told[where], where, kinds, usable) for where in waiting)

    def tell(self, wheres: Iterable[str], all_wheres: frozenset[str], nodes: list[Node]) -> dict[str, tuple[str, ...]]:
        """The kinds of nodes on which pods that say this may run; none named: all that take any pod of ours."""
        kinds, usable = self.there(nodes), self.usable(all_wheres, nodes)
        found: dict[str, tuple[str, ...]] = {}
        for where in wheres:
            fitting = tuple(sorted(name for kind in usable for name in places.names_for(where, kind, kinds[kind])))
            found[where] = () if frozenset(fitting) == usable else fitting or NOWHERE
        if any(self.told.get(where) != names for where, names in found.items()):
            self.told = {**self.told, **found}
        return found

    def devices_of(self, pod: Pod, node: Node) -> tuple[str, ...]:
        """Of what a pod has on its node; none named where that is any."""
        may = places.flavors_of(pod.where, node)
        return tuple(places.device_name(self.of(node), flavor) for flavor in may)

    def _splitting(self, keys: frozenset[places.Key], nodes: list[Node]) -> frozenset[places.Key]:
        """Those of the keys that do not say the same of all nodes of some kind that take pods. Only new keys are asked
        of all nodes, others of nodes that have changed."""
        there = {node.name: node for node in nodes if node.is_open}
        fresh = [there[name] for name in changed(self._last, there) if name in there]
        before, self._alike, self._last = self._alike, {}, there
        found: set[places.Key] = set()
        for key in keys:
            said = before.get(key, {})
            for node in fresh if key in before else there.values():
                says = places.said(node, key)
                if said.setdefault(self.of(node), says) != says:
                    found.add(key)
                    break
            else:
                self._alike[key] = said
        return frozenset(found)

    def _listed(self, nodes: list[Node]) -> list[Node]:
        """The same list while the nodes in it are the same objects."""
        if len(nodes) != len(self._nodes) or any(map(is_not, nodes, self._nodes)):
            self._nodes = nodes
        return self._nodes

    def _kinds_of(self, nodes: Iterable[Node]) -> dict[str, Node]:
        return {self.of(node): node for node in nodes if node.is_open}


def _demands(wheres: frozenset[str], told: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    return wheres.union(told)
