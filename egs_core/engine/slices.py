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

from collections.abc import Iterator, Sequence

import msgspec

from egs_core.graph.columns import GIB, Shape

SEVENTHS, EIGHTHS = 7, 8
WHOLE = 1000


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """compute: sevenths of the device; size: positions it takes; starts: positions at which it may begin."""

    name: str
    compute: int
    memory_bytes: int
    size: int
    starts: tuple[int, ...]

    @property
    def gpu_milli(self) -> int:
        """What it takes of the device, rounded so that seven sevenths fit."""
        return WHOLE * self.compute // SEVENTHS

    def covers(self, shape: Shape) -> bool:
        """Whether a share of this shape has room in it; 1/7 is 143 thousandths when it is rounded."""
        enough = shape.gpu_milli <= -(-WHOLE * self.compute // SEVENTHS)
        return enough and shape.gpu_memory_bytes <= self.memory_bytes

    def mask(self, start: int) -> int:
        """The positions it takes, as bits."""
        return ((1 << self.size) - 1) << start

    def masks(self, taken: int) -> Iterator[int]:
        """The masks at which it could be placed now."""
        return (mask for start in self.starts if not taken & (mask := self.mask(start)))


def mig_profiles(device_bytes: int) -> tuple[Profile, ...]:
    """Those of an A100 or H100 with so much memory, and their placements, as NVIDIA's MIG user guide lists them."""
    table = (
        (1, 1, (0, 1, 2, 3, 4, 5, 6)),
        (1, 2, (0, 2, 4, 6)),
        (2, 2, (0, 2, 4)),
        (3, 4, (0, 4)),
        (4, 4, (0,)),
        (7, 8, (0,)),
    )
    per_eighth = device_bytes // EIGHTHS
    return tuple(
        [
            Profile(f"{compute}g.{round(per_eighth * size / GIB)}gb", compute, per_eighth * size, size, starts)
            for compute, size, starts in table
        ]
    )


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
