"""What EGS can do on Ray, for each way of using it: the one table that `egs doctor` shows, `docs/ray.md` describes and
the conformance benches declare.

What is placed in placement groups is left alone everywhere, and tasks of drivers without EGS cannot be ended.
"""

from __future__ import annotations

from egs_core.surfaces import Surface, hint_answers

_NEVER = {
    "gpu_memory": "Ray's nodes do not say how much there is",
    "max_cost": "there are no prices",
    "idle_timeout": "nothing measures whether a task is idle",
}
_NOT_OF_GENERATORS = "not of generators"
_BY_HOOK_HINTS = hint_answers(
    {
        **dict.fromkeys(("gpus", "cpus", "memory"), "where Ray was not told"),
        "gpu_cpus": _NOT_OF_GENERATORS,
        "flavors": "as a preference, by node labels",
        **dict.fromkeys(("priority", "max_wait", "deadline", "expect"), "of tasks with a GPU, preload or limit"),
        **dict.fromkeys(("max_runtime", "max_gpu_time"), _NOT_OF_GENERATORS),
        **dict.fromkeys(("grace", "checkpoint"), "where `egs preempt` stops it"),
    },
    {
        **_NEVER,
        "gang_same": "there are no gangs",
        "stage": "never tried in a script",
        "name": "a script's tasks have their functions' names",
    },
)
_BY_RUN_HINTS = hint_answers(
    {
        **dict.fromkeys(("gpus", "cpus", "memory"), "where Ray was not told"),
        "gpu_cpus": "",
        "flavors": "",
        "max_cost": "where Options(flavors=FILE) has the price of the GPU",
        "gpu_memory": "where Options(flavors=FILE) has the memory of the GPU",
        "gang_same": "",
        **dict.fromkeys(("priority", "max_wait", "deadline", "expect", "max_runtime", "max_gpu_time"), ""),
        **dict.fromkeys(("grace", "checkpoint", "stage", "name"), ""),
    },
    {name: why for name, why in _NEVER.items() if name not in ("max_cost", "gpu_memory")},
)

_WHOLE = "no: tasks without hints are ordered only"
_BY_HOOK = {
    "observe": "yes",
    "order": "yes: GPU tasks, generators, actors and placement groups",
    "split": _WHOLE,
    "preload": _WHOLE,
    "gang": _WHOLE,
    "preempt": "no: running tasks of a script are left alone",
    "limits": _WHOLE,
    "abort": "yes: GPU tasks and actors, by name and task (`egs abort`), and `pause` of those",
    "audit": "yes",
}

_UNTRIED = "never tried through a server"
_UNTRIED_AT_ACTOR = "never tried with the actor"
_NOT_AT_SITE = f"no: {_UNTRIED}"
_AT_SITE = {
    "observe": "no: in mode observe nothing waits for a server, so it is the same as without it",
    "preempt": "no: at a server nothing of drivers is preempted",
    **dict.fromkeys(("limits", "audit"), _NOT_AT_SITE),
}

SURFACES = (
    Surface("script", "EGS_HOOK=ray EGS_MODE=on python script.py", _BY_HOOK),
    Surface(
        "hinted script",
        "the same, its functions with hints (@egs.task)",
        {
            **_BY_HOOK,
            "split": f"yes: {_NOT_OF_GENERATORS}",
            "preload": f"yes: {_NOT_OF_GENERATORS}",
            "limits": f"yes: {_NOT_OF_GENERATORS}",
            "abort": "yes",
            "gang": "no: nobody knows how many tasks there will be; egs_ray.run can",
            "preempt": "yes: by `egs preempt`, tasks that say egs.checkpoint; each time takes one of Ray's retries",
        },
        _BY_HOOK_HINTS,
    ),
    Surface(
        "cluster",
        "as hinted script, with EGS_GATE=cluster",
        {
            "order": "yes: GPU tasks and placement groups of all drivers, by queue, quota and priority",
            "observe": "no: in mode observe nothing is gated, so it is the same as without it",
            **dict.fromkeys(("split", "preload", "limits"), f"no: {_UNTRIED_AT_ACTOR}"),
            "audit": "yes",
            "gang": "no: nobody knows how many tasks there will be; egs_ray.run can",
            "preempt": "no: in an order of several drivers nothing is preempted",
            "abort": "yes: GPU tasks, also those that wait (`egs abort`), and `pause` of those",
        },
        hint_answers({"priority": "of GPU tasks, also before those of other drivers"}, _NEVER, _UNTRIED_AT_ACTOR),
    ),
    Surface(
        "run",
        "egs_ray.run(dag_node)",
        {
            **dict.fromkeys(_BY_HOOK, "yes"),
            "observe": "no: what calls egs_ray.run is in mode on",
            "audit": "yes: of its run log",
        },
        _BY_RUN_HINTS,
    ),
    Surface(
        "site script",
        "as hinted script, with EGS_URL of a site server (`egs serve`)",
        {
            **_AT_SITE,
            "order": "yes: GPU tasks and placement groups of all drivers, by queue, quota and priority",
            **dict.fromkeys(("split", "preload"), _NOT_AT_SITE),
            "gang": "no: nobody knows how many tasks there will be; egs_ray.run can",
            "abort": "yes: all of a driver (`egs abort`)",
        },
        hint_answers({"priority": "of GPU tasks, also before those of other drivers"}, _NEVER, _UNTRIED),
    ),
    Surface(
        "site run",
        "as run, with EGS_URL of a site server (`egs serve`)",
        {**_AT_SITE, **dict.fromkeys(("order", "split", "preload", "gang", "abort"), "yes")},
        hint_answers({}, _NEVER, _UNTRIED),
    ),
    Surface(
        "keep-ready",
        "egs ray keep-ready 2, beside the cluster, for drivers with EGS and without",
        {
            **dict.fromkeys(_BY_HOOK, "no: it has Ray start processes, and changes nothing else"),
            "preload": "yes: modules that Ray was started with, for the tasks of the next driver",
        },
    ),
)


def surface(name: str) -> Surface:
    """The surface of that name."""
    return next(surface for surface in SURFACES if surface.name == name)
