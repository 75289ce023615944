"""A load played on an ASGI application in its own process: no server, no sockets, no real time.

Virtual time passes only where nothing is left to do, so a minute of load takes the seconds that its work
takes, and the same load and seed give the same answers to the last bit.
"""

from autoglm_throttle.traffic.inproc.clock import MovableClock, VirtualClock
from autoglm_throttle.traffic.inproc.driver import Manner, Watch, run_inprocess
from autoglm_throttle.traffic.inproc.loop import NotVirtual, VirtualLoop

__all__ = ["Manner", "MovableClock", "NotVirtual", "VirtualClock", "VirtualLoop", "Watch", "run_inprocess"]
