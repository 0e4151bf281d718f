"""Predicted durations: a distribution per task signature. `Predictor` is the entry; it does no input or output."""

from egs_core.predict.estimate import Estimate, Signature, input_size_bucket, signature_of
from egs_core.predict.forecast import Forecast, Forecaster, Traits
from egs_core.predict.predictor import Features, Predictor

__all__ = [
    "Estimate",
    "Features",
    "Forecast",
    "Forecaster",
    "Predictor",
    "Signature",
    "Traits",
    "input_size_bucket",
    "signature_of",
]
