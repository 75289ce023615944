"""The generator: sends a load over HTTP/1.1 and records the result of each request."""

from autoglm_throttle.traffic.generator.crew import Crew
from autoglm_throttle.traffic.generator.launch import launch
from autoglm_throttle.traffic.generator.open_loop import Generator
from autoglm_throttle.traffic.generator.options import Beat, Observer, Options
from autoglm_throttle.traffic.generator.roster import Roster
from autoglm_throttle.traffic.generator.target import Target

__all__ = ["Beat", "Crew", "Generator", "Observer", "Options", "Roster", "Target", "launch"]
