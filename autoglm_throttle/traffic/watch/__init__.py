"""Probes of a service under load, sampled once a second from outside."""

from autoglm_throttle.traffic.watch.metrics import MetricsProbe
from autoglm_throttle.traffic.watch.prober import Probe, Prober, ProbeTargetLostError
from autoglm_throttle.traffic.watch.process import ProcessProbe

__all__ = ["MetricsProbe", "Probe", "ProbeTargetLostError", "Prober", "ProcessProbe"]
