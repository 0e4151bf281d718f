"""Work that comes by made-up streams, by which rules are judged without running anything."""

from __future__ import annotations

import random


def short_pipelines(seed: int, length_s: float = 3 * 3600.0) -> list[tuple[float, int]]:
    """Short pipelines of several users: some each few minutes, some each hour, some by chance; chains and bursts. When
    a task comes, in seconds, and of which of six pipelines it is."""
    draw, found = random.Random(seed), list[tuple[float, int]]()
    for number in range(6):
        at, every = draw.uniform(0.0, 600.0), (120.0, 600.0, 1800.0)[number % 3]
        while at < length_s:
            tasks = (1, 3, 6)[number // 2]
            found += [
                (at + task * (0.1 if number % 2 else 4.0) + draw.uniform(0.0, 0.05), number) for task in range(tasks)
            ]
            at += every * draw.uniform(0.98, 1.02) if number < 4 else draw.expovariate(1 / every)
    return sorted(found)
