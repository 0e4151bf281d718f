"""How many pipelines and trainings there are, and how long each phase of the demo's tasks lasts, in seconds.

The lengths are those of the demo on Ray, all times one factor, which EGS_DEMO_FACTOR changes: from the end of one task
to the start of the next Airflow takes up to a second, so short phases show little but that.
"""

from __future__ import annotations

import math
import os

from egs_core.errors import InputError

VARIABLE = "EGS_DEMO_FACTOR"


def _read_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0.0 < factor < math.inf:
        raise InputError(VARIABLE, f"{text!r} is no factor", "a number above 0, such as 2")
    return factor


PIPELINES = 2
TRAININGS = 4
ARRIVAL_S = 1.0
CPUS = 4
GPUS = 2
FACTOR = _read_factor(os.environ.get(VARIABLE) or "2.0")

LOAD_S = 1.0 * FACTOR
PREPROCESS_S = 1.0 * FACTOR
DECODE_S = 1.0 * FACTOR
FIT_S = 1.5 * FACTOR
WRITE_S = 0.3 * FACTOR
EVALUATE_S = 0.7 * FACTOR
REPORT_S = 0.3 * FACTOR
MODEL_LOAD_S = 1.0 * FACTOR
