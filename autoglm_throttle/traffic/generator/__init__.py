"""The generator: sends a load over HTTP/1.1 and records the result of each request."""

from autoglm_throttle.traffic.generator.crew import ClosedLoopSender
from autoglm_throttle.traffic.generator.launch import launch
from autoglm_throttle.traffic.generator.open_loop import OpenLoopSender
from autoglm_throttle.traffic.generator.options import ClientOptions, Observer, ProgressCallback
from autoglm_throttle.traffic.generator.roster import UserSchedule
from autoglm_throttle.traffic.generator.target import TargetUrl

__all__ = [
    "ProgressCallback",
    "ClosedLoopSender",
    "OpenLoopSender",
    "Observer",
    "ClientOptions",
    "UserSchedule",
    "TargetUrl",
    "launch",
]
