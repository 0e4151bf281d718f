"""What each hint of `egs.task` means, in one sentence or two: the reference page is made from this.

Not imported by `hints.py`, which runs inside workers.
"""

from __future__ import annotations

MEANINGS: dict[str, str] = {
    "gpus": "GPUs that a GPU phase of the task needs. Not stated: what the framework was told.",
    "cpus": "CPUs that the task needs.",
    "gpu_cpus": "CPUs that the task needs during a GPU phase; by default those of `cpus`.",
    "memory": "Main memory that the task needs.",
    "gpu_memory": "Memory that the task needs on each of its GPUs.",
    "preload": "What is loaded before the task starts, in its process, without holding a GPU: modules, files, or the "
    "value of a function that returns a model.",
    "max_runtime": "The longest that one attempt may run; then it is stopped and has failed.",
    "max_gpu_time": "The most GPU time that the task may hold, in all its attempts together; then it is stopped and "
    "has failed.",
    "max_cost": "The most that the task may cost, in all its attempts together, in the currency of the prices that are "
    "configured for the hardware. Without prices there is nothing to compare it with.",
    "idle_timeout": "How long the task may be idle. Accepted, and not applied yet: nothing measures whether a task is "
    "idle. Use `max_runtime`.",
    "deadline": "When the task should have ended, counted from the submission of its workload. It changes the order "
    "and stops nothing.",
    "max_wait": "How long the task may be passed over while it is ready; then it goes to the front.",
    "priority": "Higher goes first, before every other rule of order.",
    "gang": "Name of a gang: tasks of a workload with one name start together or not at all.",
    "gang_same": "Level of the topology at which all tasks of the gang must be together, for example `node` or `rack`.",
    "stage": "Name of the stage that the task belongs to, for `egs pause --stage`.",
    "name": "Name of the task in reports and in the history; by default that of the function.",
    "split": "Whether the task is split into CPU and GPU phases. Not stated: EGS decides from the code.",
    "expect": "How long the task is expected to take; used until there is a history.",
    "flavors": "Kinds of hardware on which the task may run; none: all.",
    "grace": "How long the task's `egs.checkpoint` callback may take before the task is stopped.",
}
