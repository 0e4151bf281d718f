"""Where a task's pod should run: select_pool for a GPU, and off the nodes with GPUs for all others.

A pool fits a task that its nodes are sure to have room for: what a pool does not say about its nodes, they have; an
amount that is known at run time only fits no node whose size is stated. A pod that fits no node would wait for ever.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from egs_core.hints import TaskHints
from egs_kubeflow.convert.needs import Needs
from egs_kubeflow.rewrite.profile import Pool, Profile, Toleration

MOST_TERMS = 64


class Placement(msgspec.Struct, frozen=True):
    """A pool to run on, or terms that keep off others; each term is a set of label -> value that a node must not have.
    reason: why, in words for a person."""

    reason: str
    pool: Pool | None = None
    terms: tuple[tuple[tuple[str, str], ...], ...] = ()


def wants_gpu(needs: Needs) -> bool:
    """Whether a task holds a GPU, as far as is known before it runs."""
    return bool(needs.gpus) or "gpus" in needs.unknown or "accelerator" in needs.unknown


def select_pool(profile: Profile, needs: Needs, hints: TaskHints) -> Pool | None:
    """The first pool with GPUs that fits."""
    return next((pool for pool in profile.pools if pool.accelerator and _fits(pool, needs, hints)), None)


def select_placement(profile: Profile, needs: Needs, hints: TaskHints) -> Placement | None:
    """Where a task should run; None where the profile has nothing to say about it."""
    if "accelerator" in needs.unknown:
        return None
    if wants_gpu(needs):
        pool = select_pool(profile, needs, hints)
        return Placement(f"{_asked(needs, hints)} fits pool {pool.name!r}", pool) if pool else None
    gpu_pools = [pool for pool in profile.pools if pool.accelerator]
    fitting = [pool for pool in profile.pools if not pool.accelerator and _fits(pool, needs, hints)]
    if len(fitting) == 1:
        return Placement(f"it needs no GPU: pool {fitting[0].name!r}, off the nodes with GPUs", fitting[0])
    if not gpu_pools:
        return None
    terms = off_terms(gpu_pools)
    names = ", ".join(pool.name for pool in gpu_pools)
    return Placement(f"it needs no GPU: off the nodes with GPUs ({names})", None, terms) if terms else None


def off_terms(pools: Sequence[Pool]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Terms of which a node must meet one to be in none of the pools; none where there would be very many.

    not (a and b) and not c  =  (not a and not c) or (not b and not c)
    """
    if math.prod(len(pool.selector) for pool in pools) > MOST_TERMS:
        return ()
    found = itertools.product(*(sorted(pool.selector.items()) for pool in pools))
    return tuple(dict.fromkeys(tuple(sorted(set(term))) for term in found))


def missing_tolerations(pool: Pool, present: Sequence[Any]) -> list[Toleration]:
    """Those of a pool that a pod, whose tolerations are messages, does not have yet."""
    have = {(one.key, one.operator or "Equal", one.value, one.effect) for one in present}
    return [one for one in pool.tolerations if (one.key, one.operator, one.value, one.effect) not in have]


def why_unplaced(profile: Profile, needs: Needs, hints: TaskHints) -> str:
    """Why no pool fits a task that asks for a GPU, in words for a person: the first lack of each that could."""
    if "accelerator" in needs.unknown:
        return "its accelerator is known at run time only"
    pools = [pool for pool in profile.pools if pool.accelerator and needs.accelerator in ("", pool.accelerator)]
    if not pools:
        return f"no pool has {needs.accelerator or 'GPUs'}"
    lacks = [f"{pool.name}: {lack}" for pool in pools if (lack := _lack(pool, needs, hints))]
    return f"no pool is sure to have room for {needs.accelerator or 'a GPU'} ({'; '.join(lacks)})"


def _fits(pool: Pool, needs: Needs, hints: TaskHints) -> bool:
    return (not needs.accelerator or pool.accelerator == needs.accelerator) and not _lack(pool, needs, hints)


def _lack(pool: Pool, needs: Needs, hints: TaskHints) -> str:
    """The first thing that a task asks for and a node of the pool may not have; "" where it has all."""
    gpus = _most(needs, "gpus")
    amounts = (
        (gpus, pool.gpus_per_node, 1, "GPUs"),
        ((hints.gpu_memory_bytes or 0) if gpus else 0, pool.gpu_memory, 2**30, "GiB of GPU memory"),
        (_most(needs, "cpus"), pool.cpus, 1, "CPUs"),
        (_most(needs, "memory_bytes"), pool.memory, 2**30, "GiB of memory"),
    )
    for asked, there, unit, what in amounts:
        if there is not None and asked > there:
            shown = "an unknown number of" if asked == math.inf else f"{asked / unit:g}"
            return f"{shown} {what} asked for, {there / unit:g} there"
    if hints.flavors and pool.accelerator and pool.flavor not in hints.flavors:
        return f"{' or '.join(hints.flavors)} asked for, {pool.flavor or 'no flavor stated'} there"
    return ""


def _most(needs: Needs, amount: str) -> float:
    return math.inf if amount in needs.unknown else getattr(needs, amount) or 0.0


def _asked(needs: Needs, hints: TaskHints) -> str:
    count = "an unknown number of" if "gpus" in needs.unknown else f"{math.ceil(needs.gpus or 0)} x"
    kind = f" ({' or '.join(hints.flavors)})" if hints.flavors else ""
    return f"{count} {needs.accelerator or 'GPU'}{kind}"
