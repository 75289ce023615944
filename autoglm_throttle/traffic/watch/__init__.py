"""What is seen of a service from outside while it is under load, once a second."""

from autoglm_throttle.traffic.watch.metrics import MetricsLook
from autoglm_throttle.traffic.watch.process import ProcessLook
from autoglm_throttle.traffic.watch.watch import Gone, Look, Watch

__all__ = ["Gone", "Look", "MetricsLook", "ProcessLook", "Watch"]
