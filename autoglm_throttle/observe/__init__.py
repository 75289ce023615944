"""What people see: metrics and log lines. Readers of a Snapshot; no mechanism knows them."""

from autoglm_throttle.observe.endpoint import MetricsApp, collector, metrics_app
from autoglm_throttle.observe.logs import JsonFormatter
from autoglm_throttle.observe.metric import HistogramSpec, MetricSpec
from autoglm_throttle.observe.metrics import METRICS

__all__ = [
    "METRICS",
    "HistogramSpec",
    "JsonFormatter",
    "MetricSpec",
    "MetricsApp",
    "collector",
    "metrics_app",
]
