"""Probes of a service under load, sampled once a second from outside."""

from autoglm_throttle.traffic.watch.metrics import MetricsProbe
from autoglm_throttle.traffic.watch.process import ProcessProbe
from autoglm_throttle.traffic.watch.watch import Probe, Prober, ProbeTargetLostError

__all__ = ["ProbeTargetLostError", "Probe", "MetricsProbe", "ProcessProbe", "Prober"]
