"""In-process load tests of an ASGI application: no server, no sockets, no real time.

Virtual time passes only while no task is ready. Equal loads and seeds give equal responses.
"""

from autoglm_throttle.testing.manual_throttle import ManualClock as VirtualClock
from autoglm_throttle.traffic.inproc.driver import ClientBehavior, WatchCallback, run_inprocess
from autoglm_throttle.traffic.inproc.loop import MovableClock, VirtualLoop, VirtualTimeError

__all__ = [
    "ClientBehavior",
    "MovableClock",
    "VirtualClock",
    "VirtualLoop",
    "VirtualTimeError",
    "WatchCallback",
    "run_inprocess",
]
