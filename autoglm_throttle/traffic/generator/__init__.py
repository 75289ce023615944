"""The generator: sends a load over HTTP/1.1 and records the result of each request."""

from autoglm_throttle.traffic.generator.closed_loop import ClosedLoopSender, UserSchedule
from autoglm_throttle.traffic.generator.connection_pool import ClientOptions
from autoglm_throttle.traffic.generator.launch import launch
from autoglm_throttle.traffic.generator.sender import Observer, OpenLoopSender, ProgressCallback
from autoglm_throttle.traffic.generator.target import TargetUrl, TlsOptions

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
