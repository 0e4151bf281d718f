"""The decision engine: events in, decisions out. It knows no clock, thread, file, network or framework."""

from egs_core.engine.core import Engine, EngineConfig
from egs_core.engine.policy import POLICIES

__all__ = ["POLICIES", "Engine", "EngineConfig"]
