"""Probes of a service under load, sampled once a second from outside."""

from autoglm_throttle.traffic.watch.metrics import MetricsLook
from autoglm_throttle.traffic.watch.process import ProcessLook
from autoglm_throttle.traffic.watch.watch import Gone, Look, Watch

__all__ = ["Gone", "Look", "MetricsLook", "ProcessLook", "Watch"]
