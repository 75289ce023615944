"""The generator: sends a load over HTTP/1.1 and writes down what became of each request."""

from autoglm_throttle.traffic.generator.open_loop import Generator, Options
from autoglm_throttle.traffic.generator.wire import Target

__all__ = ["Generator", "Options", "Target"]
