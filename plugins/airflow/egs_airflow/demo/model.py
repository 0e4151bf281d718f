"""A pretrained model, loaded when this module is imported; in host memory, so that it may be imported before a fork."""

from __future__ import annotations

import time

from egs_airflow.demo.times import MODEL_LOAD_S
from egs_core import digits

_began = time.time()
MODEL: digits.Array = digits.mean_images()
time.sleep(max(0.0, _began + MODEL_LOAD_S - time.time()))
