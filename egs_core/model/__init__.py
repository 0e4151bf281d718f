"""A model's operators split over devices: the instance, the loss of an assignment, and the search for a good one.

No clock, thread, file or framework is used here. `instance` reads texts, `loss` says what is good, `search` searches.
"""

from egs_core.model.instance import Device, Devices, Instance, Operators, read_devices, read_operators
from egs_core.model.loss import OBJECTIVES, Loss, Objective, evaluate
from egs_core.model.search import Split, split

__all__ = [
    "OBJECTIVES",
    "Device",
    "Devices",
    "Instance",
    "Loss",
    "Objective",
    "Operators",
    "Split",
    "evaluate",
    "read_devices",
    "read_operators",
    "split",
]
