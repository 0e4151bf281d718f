"""What EGS can do on Ray, for each way of using it: the one table that `egs doctor` shows, `docs/ray.md` describes and
the conformance benches declare.

A script's own placement groups are left alone everywhere, and tasks of drivers without EGS cannot be ended.
"""

from __future__ import annotations

from egs_core.surfaces import Surface

_WHOLE = "no: tasks without hints are ordered only"
_BY_HOOK = {
    "observe": "yes",
    "order": "yes",
    "split": _WHOLE,
    "preload": _WHOLE,
    "gang": _WHOLE,
    "preempt": "no: the references to its tasks are the script's, so nothing can take their place",
    "limits": _WHOLE,
    "abort": "yes: GPU tasks, by name and task (`egs abort`), and `pause` of those",
    "audit": "yes",
}

SURFACES = (
    Surface("script", "EGS_HOOK=ray EGS_MODE=on python script.py", _BY_HOOK),
    Surface(
        "hinted script",
        "the same, its functions with hints (@egs.task)",
        {
            **_BY_HOOK,
            **dict.fromkeys(("split", "preload", "limits", "abort"), "yes"),
            "gang": "no: nobody knows how many tasks there will be; egs_ray.run can",
        },
    ),
    Surface(
        "cluster",
        "the same with EGS_GATE=cluster",
        {
            **_BY_HOOK,
            **dict.fromkeys(("split", "preload", "gang", "limits"), "no: this gate reads no hints"),
            "abort": "yes: GPU tasks at the gate, also those that workers submitted (`egs abort`)",
        },
    ),
    Surface(
        "run",
        "egs_ray.run(dag_node)",
        {
            **dict.fromkeys(_BY_HOOK, "yes"),
            "observe": "no: what calls egs_ray.run is in mode on",
            "audit": "yes: of its run log",
        },
    ),
)


def surface(name: str) -> Surface:
    """The surface of that name."""
    return next(surface for surface in SURFACES if surface.name == name)
