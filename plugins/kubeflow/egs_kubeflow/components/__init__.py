"""Components that carry hints, record what they took, and hold a GPU in their GPU phases only."""

from egs_kubeflow.components.wrapper import Component, component

__all__ = ["Component", "component"]
