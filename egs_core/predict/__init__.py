"""Predicted durations: a distribution per task signature. `Predictor` is the entry; it does no input or output."""

from egs_core.predict.estimate import Estimate, Signature, input_size_bucket, signature_of
from egs_core.predict.predictor import Predictor

__all__ = ["Estimate", "Predictor", "Signature", "input_size_bucket", "signature_of"]
