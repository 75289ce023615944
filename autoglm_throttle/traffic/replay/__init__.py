"""Replays recorded traffic, and compares its results with the recorded ones."""

from autoglm_throttle.traffic.replay.comparison import compare_results, comparison_lines
from autoglm_throttle.traffic.replay.prepare import (
    Replay,
    ReplayIndex,
    ReplayOptions,
    is_trace,
    of_trace,
    open_replay,
    prepare,
    times_of,
)
from autoglm_throttle.traffic.replay.selection import Selection

__all__ = [
    "Replay",
    "ReplayIndex",
    "ReplayOptions",
    "Selection",
    "compare_results",
    "comparison_lines",
    "is_trace",
    "of_trace",
    "open_replay",
    "prepare",
    "times_of",
]
