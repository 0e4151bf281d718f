"""Slices of a device (NVIDIA's MIG): a share comes as one of a few profiles, each at a few positions.

    position   0   1   2   3   4   5   6   7        an A100: memory in eighths, compute in sevenths
    1g         |-| |-| |-| |-| |-| |-| |-|          1/7 of the compute, 1/8 of the memory
    2g         |-----| |-----| |-----|              2/7, 2/8
    3g         |-------------| |-------------|      3/7, 4/8
    4g         |-------------|                      4/7, 4/8
    7g         |-----------------------------|      all of it

So a 1g at position 1 rules out a 4g, and one at position 6 does not. A phase that asks for a share gets the smallest
profile that covers its compute and memory, at the position after which the most can still be given out. A device is
either split or given out whole; slices come and go with the phases.
"""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine.specs import Profile
from egs_core.graph.columns import Shape


def smallest(profiles: Sequence[Profile], shape: Shape) -> Profile | None:
    """The profile that a share of this shape gets; None when none covers it."""
    covering = [profile for profile in profiles if profile.covers(shape)]
    return min(covering, key=lambda p: (p.compute, p.size), default=None)


def best_mask(profiles: Sequence[Profile], profile: Profile, taken: int) -> int | None:
    """The positions for a profile on a device of which these are taken; None when there is no room."""
    return max(profile.masks(taken), key=lambda mask: (_left(profiles, taken | mask), -mask), default=None)


def _left(profiles: Sequence[Profile], taken: int) -> int:
    """How much could still be given out: all placements of all profiles, by their compute."""
    return sum(profile.compute for profile in profiles for _ in profile.masks(taken))
