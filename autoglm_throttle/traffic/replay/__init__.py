"""Replays recorded traffic, and compares its results with the recorded ones."""

from autoglm_throttle.traffic.replay.cut import Cut
from autoglm_throttle.traffic.replay.differences import differences, exceeds, told
from autoglm_throttle.traffic.replay.prepare import Recorded, Replay, prepare
from autoglm_throttle.traffic.replay.source import Manner, is_trace, of_trace, open_replay, times_of

__all__ = [
    "Cut",
    "Manner",
    "Recorded",
    "Replay",
    "differences",
    "exceeds",
    "is_trace",
    "of_trace",
    "open_replay",
    "prepare",
    "times_of",
    "told",
]
