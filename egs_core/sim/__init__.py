"""The simulator: the shipped engine under a virtual clock, so a simulated figure is a figure of the shipped code."""

from egs_core.sim.config import Durations, SimConfig, SimNode
from egs_core.sim.simulator import SimResult, simulate

__all__ = ["Durations", "SimConfig", "SimNode", "SimResult", "simulate"]
