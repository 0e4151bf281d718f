"""The decision engine: events in, decisions out. It knows no clock, thread, file, network or framework."""

from egs_core.engine.engine import Engine
from egs_core.engine.order.policy import POLICIES
from egs_core.engine.specs import EngineConfig

__all__ = ["POLICIES", "Engine", "EngineConfig"]
