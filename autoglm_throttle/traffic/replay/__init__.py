"""Replays recorded traffic, and compares its results with the recorded ones."""

from autoglm_throttle.traffic.replay.cut import Selection
from autoglm_throttle.traffic.replay.differences import compare_results, comparison_lines, is_above
from autoglm_throttle.traffic.replay.prepare import Replay, ReplayIndex, prepare
from autoglm_throttle.traffic.replay.source import ReplayOptions, is_trace, of_trace, open_replay, times_of

__all__ = [
    "Selection",
    "ReplayOptions",
    "ReplayIndex",
    "Replay",
    "compare_results",
    "is_above",
    "is_trace",
    "of_trace",
    "open_replay",
    "prepare",
    "times_of",
    "comparison_lines",
]
