"""What is written for one task: resources, place, limits, labels, queue. What its author has set is left alone."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import msgspec

from egs_kubeflow.convert.pipeline import TaskFacts
from egs_kubeflow.rewrite.changes import Log, default_of
from egs_kubeflow.rewrite.expected import Expected
from egs_kubeflow.rewrite.placement import (
    Placement,
    missing_tolerations,
    select_placement,
    select_pool,
    wants_gpu,
    why_unplaced,
)
from egs_kubeflow.rewrite.profile import Pool, PriorityClass, Profile, Queue, TimeLimits

WORKLOAD, TASK, RANK, PREDICTED_S = (f"egs.io/{name}" for name in ("workload", "task", "rank", "predicted-s"))
QUEUE, PRIORITY_CLASS = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
_MOST_LABEL = 63


class Written(msgspec.Struct):
    """A task that is being written. executor: its ExecutorSpec; config: its KubernetesExecutorConfig."""

    id: str
    facts: TaskFacts
    executor: Any
    config: Any
    log: Log

    def label(self, key: str, value: str, reason: str) -> None:
        """Set a label of the task's pod."""
        labels = self.config.pod_metadata.labels
        self.log.change(self.id, f"label {key}", labels.get(key), value, reason)
        labels[key] = value


def write_resources(task: Written, profile: Profile) -> None:
    """What hints ask for and the executor does not."""
    hints, needs, resources = task.facts.hints, task.facts.needs, task.executor.container.resources
    if needs.gpus and not needs.accelerator and hints.gpus:
        pool = select_pool(profile, needs, hints)
        name, count = pool.accelerator if pool else profile.gpu_resource, math.ceil(needs.gpus)
        task.log.change(task.id, "accelerator", None, f"{count} x {name}", f"its hint says gpus={hints.gpus:g}")
        accelerator = resources.accelerator
        accelerator.type = accelerator.resource_type = name
        accelerator.count, accelerator.resource_count = count, str(count)
        task.facts = msgspec.structs.replace(task.facts, needs=msgspec.structs.replace(needs, accelerator=name))
    if hints.cpus and not _stated(resources, "cpu"):
        resources.cpu_request, resources.resource_cpu_request = hints.cpus, f"{hints.cpus:.9g}"
        task.log.change(task.id, "CPU request", None, f"{hints.cpus:g}", f"its hint says cpus={hints.cpus:g}")
    if hints.memory_bytes and not _stated(resources, "memory"):
        resources.memory_request, resources.resource_memory_request = hints.memory_bytes / 1e9, str(hints.memory_bytes)
        task.log.change(task.id, "memory request", None, str(hints.memory_bytes), "its hint says memory")


def note_defaults(task: Written, profile: Profile) -> None:
    """Say what would be written otherwise, were it not for the default of a parameter of the pipeline."""
    needs, hints = task.facts.needs, task.facts.hints
    if task.log.is_final or not needs.defaulted:
        return
    sure = needs.without_defaults()
    decided = []
    if not _is_placed(task.config):
        with_it, without = (select_placement(profile, one, hints) for one in (needs, sure))
        decided += ["where it runs"] if (with_it and with_it.pool) != (without and without.pool) else []
    if wants_gpu(needs) != wants_gpu(sure) and (profile.queues or profile.time_limits != TimeLimits()):
        decided.append("whether it counts as a GPU task")
    if decided:
        parameters = sorted({parameter for _, parameter in needs.defaulted})
        task.log.note(task.id, f"{' and '.join(decided)} is decided by the {default_of(parameters)}")


def _is_placed(config: Any) -> bool:
    return bool(config.HasField("node_selector") or config.node_affinity)


def write_place(task: Written, profile: Profile) -> None:
    """Node selector, tolerations or affinity, unless the author has placed the task."""
    config, needs = task.config, task.facts.needs
    if _is_placed(config):
        return
    placement = select_placement(profile, needs, task.facts.hints)
    if placement is None:
        if wants_gpu(needs) and profile.pools:
            task.log.note(task.id, f"is not placed: {why_unplaced(profile, needs, task.facts.hints)}")
        return
    if placement.pool is None:
        _keep_off(task, placement)
        return
    selector = dict(sorted(placement.pool.selector.items()))
    task.log.change(task.id, "node selector", None, selector, placement.reason)
    config.node_selector.labels.update(selector)
    _tolerate(task, placement.pool)


def write_limits(task: Written, profile: Profile) -> None:
    """The pod's time limit: the author's hint, else the site's."""
    if task.config.active_deadline_seconds:
        return
    hint_s, limits = task.facts.hints.max_runtime_s, profile.time_limits
    site_s = limits.gpu if wants_gpu(task.facts.needs) else limits.cpu
    limit_s = hint_s if hint_s is not None else site_s
    if limit_s is None:
        return
    seconds = max(1, math.ceil(limit_s))
    reason = "its hint says max_runtime" if hint_s is not None else "the site's limit"
    task.log.change(task.id, "timeout", None, f"{seconds} s", reason)
    task.config.active_deadline_seconds = seconds


def write_labels(task: Written, workload: str, likely: Expected) -> None:
    """EGS's own labels, which are always those of this rewrite."""
    task.label(WORKLOAD, label_value(workload), "names the pipeline")
    task.label(TASK, label_value(task.id), "names the task")
    path = "seconds from its start to the pipeline's end, along the longest path"
    guess = "; a guess where no history or hint says" if likely.is_guess else ""
    task.label(RANK, f"{likely.rank_s:.1f}", path + guess)
    if likely.predicted_s is not None:
        task.label(PREDICTED_S, f"{likely.predicted_s:.1f}", "how long it is expected to take")
    elif PREDICTED_S in task.config.pod_metadata.labels:
        before = task.config.pod_metadata.labels.pop(PREDICTED_S)
        task.log.change(task.id, f"label {PREDICTED_S}", before, None, "nothing is known of how long it takes")


def write_queue(task: Written, profile: Profile) -> None:
    """Kueue's labels, for objects that exist: one that does not would keep the pod waiting for ever."""
    labels = task.config.pod_metadata.labels
    if QUEUE not in labels:
        kind = "gpu" if wants_gpu(task.facts.needs) else "cpu"
        queue = next((q for q in profile.queues if q.exists and q.kind in (None, kind)), None)
        if queue is not None and (why := _why_never_admitted(task, profile, queue)):
            task.log.note(task.id, f"queue {queue.name!r} is not written: {why}")
        elif queue is not None:
            task.label(QUEUE, queue.name, "the site's queue" + (f" for tasks of kind {kind}" if queue.kind else ""))
    if QUEUE in labels and PRIORITY_CLASS not in labels:
        priority = task.facts.hints.priority
        chosen = _class_of(profile, priority)
        if chosen is not None and chosen.exists:
            task.label(PRIORITY_CLASS, chosen.name, f"its author's priority is {priority}")
        elif chosen is not None:
            task.log.note(task.id, f"priority class {chosen.name!r} is not written: the profile does not say it exists")


def _why_never_admitted(task: Written, profile: Profile, queue: Queue) -> str:
    """Why Kueue would keep the task waiting for ever, as far as the profile knows: its author's node selector fits no
    pool of which the queue has a quota."""
    selector = dict(task.config.node_selector.labels)
    quotas = next((one.quotas for one in profile.cluster_queues if one.name == queue.cluster_queue), None)
    pools = [pool for pool in profile.pools if quotas is not None and pool.name in quotas]
    if not selector or not pools:
        return ""
    if any(all(selector.get(key, value) == value for key, value in pool.selector.items()) for pool in pools):
        return ""
    stated = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
    names = ", ".join(sorted(pool.name for pool in pools))
    return f"its node selector {stated} fits none of the pools that ClusterQueue {queue.cluster_queue!r} has: {names}"


def label_value(text: str) -> str:
    """The text as a label's value; a long one is cut, and told from its like by a digest.

    >>> label_value("for-loop-1.train"), label_value("my model (v2)")
    ('for-loop-1.train', 'my-model--v2')
    """
    value = re.sub(r"[^A-Za-z0-9._-]", "-", text).strip("._-")
    if len(value) <= _MOST_LABEL:
        return value
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{value[: _MOST_LABEL - 9].rstrip('._-')}-{digest}"


def _class_of(profile: Profile, priority: int) -> PriorityClass | None:
    """The class of a user's priority. What EGS has learned of a task never chooses one: it would preempt its equals."""
    reached = [one for one in profile.priority_classes if one.at_least <= priority]
    return max(reached, key=lambda one: one.at_least, default=None)


def _tolerate(task: Written, pool: Pool) -> None:
    for one in missing_tolerations(pool, task.config.tolerations):
        added = task.config.tolerations.add()
        added.key, added.operator, added.value, added.effect = one.key, one.operator, one.value, one.effect
        shown = " ".join(part for part in (one.key, one.operator, one.value, one.effect) if part)
        task.log.change(task.id, "toleration", None, shown, f"the nodes of pool {pool.name!r} have the taint")


def _keep_off(task: Written, placement: Placement) -> None:
    shown = [{key: f"not {value}" for key, value in term} for term in placement.terms]
    task.log.change(task.id, "node affinity", None, shown, placement.reason)
    for term in placement.terms:
        added = task.config.node_affinity.add()
        for key, value in term:
            expression = added.match_expressions.add()
            expression.key, expression.operator = key, "NotIn"
            expression.values.append(value)


def _stated(resources: Any, what: str) -> bool:
    names = (f"{prefix}{what}_{bound}" for prefix in ("", "resource_") for bound in ("request", "limit"))
    return any(getattr(resources, name) for name in names)
