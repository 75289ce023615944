"""The generator: sends a load over HTTP/1.1 and records the result of each request."""

from autoglm_throttle.traffic.generator.closed_loop import ClosedLoopSender
from autoglm_throttle.traffic.generator.launch import launch
from autoglm_throttle.traffic.generator.open_loop import OpenLoopSender
from autoglm_throttle.traffic.generator.options import ClientOptions, Observer, ProgressCallback
from autoglm_throttle.traffic.generator.target import TargetUrl, TlsOptions
from autoglm_throttle.traffic.generator.user_schedule import UserSchedule

__all__ = [
    "ClientOptions",
    "ClosedLoopSender",
    "Observer",
    "OpenLoopSender",
    "ProgressCallback",
    "TargetUrl",
    "TlsOptions",
    "UserSchedule",
    "launch",
]
