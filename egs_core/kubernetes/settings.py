"""What a controller is told when it starts."""

from __future__ import annotations

import msgspec

from egs_core.kubernetes import gates, names
from egs_core.kubernetes.images import PULL_S
from egs_core.kubernetes.limits import Rules
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.readings import NO_READS, ReadRules


class Settings(msgspec.Struct, frozen=True):
    """namespaces: whose pods are served; none named: all. window: so many opened pods may wait for a node at once;
    ahead: so many are opened although the engine sees no room. longest_s: of a gate that states no release-by time;
    limits: of pods that state none; preempts: a pod may be deleted for another, where what made it makes it again;
    preloads: images are loaded ahead, which takes pull_s where it is not known, and by reads what tasks read;
    placeholders: so many pods stand for what needs a node. url: of the site server at which the pods are ordered, "":
    at none; cluster_name: what people see there; queue: of namespaces that have none there, notebook_queue: of
    notebooks; multikueue: one of `clusters.ROLES`, "": none."""

    namespaces: tuple[str, ...] = ()
    window: int = 50
    ahead: int = 0
    longest_s: float = gates.RELEASE_BY_S
    lease_namespace: str = names.SYSTEM
    identity: str = "egs"
    with_kueue: bool = True
    limits: Rules = Rules()
    preempts: bool = False
    preloads: bool = False
    pull_s: float = PULL_S
    reads: ReadRules = NO_READS
    placeholders: PlaceholderSettings = PlaceholderSettings()
    url: str = ""
    cluster_name: str = ""
    queue: str = ""
    notebook_queue: str = ""
    multikueue: str = ""
