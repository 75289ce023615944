"""Plays what was recorded, and compares what became of it then and now."""

from autoglm_throttle.traffic.replay.cut import Cut
from autoglm_throttle.traffic.replay.differences import differences, exceeds, told
from autoglm_throttle.traffic.replay.prepare import Recorded, Replay, prepare

__all__ = ["Cut", "Recorded", "Replay", "differences", "exceeds", "prepare", "told"]
