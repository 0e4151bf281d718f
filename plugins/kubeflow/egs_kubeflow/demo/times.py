"""How many trainings there are, and how long each phase of the demo's tasks lasts in seconds, before a run's factor."""

from __future__ import annotations

STEPS = 3
"""Trainings one after the other, each from the model of the one before."""
CANDIDATES = 6
"""Trainings beside them, each with settings of its own."""

CPUS = 4
GPUS = 2

LOAD_S = 1.0
PREPARE_S = 1.0
DECODE_S = 2.0
FIT_S = 3.0
WRITE_S = 0.6
EVALUATE_S = 1.0
REPORT_S = 0.3
