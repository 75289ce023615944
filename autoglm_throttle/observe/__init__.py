"""Metrics and log lines for operators. They read a Snapshot; no mechanism imports them."""

from autoglm_throttle.observe.alerts import Alerts, start_alerts
from autoglm_throttle.observe.endpoint import MetricsApp, collector, metrics_app
from autoglm_throttle.observe.evaluator import Alert
from autoglm_throttle.observe.logs import JsonFormatter
from autoglm_throttle.observe.metric import HistogramSpec, MetricSpec
from autoglm_throttle.observe.metrics import METRICS
from autoglm_throttle.observe.otel import export_to_otel
from autoglm_throttle.observe.page.app import StatusApp, status_app

__all__ = [
    "METRICS",
    "Alert",
    "Alerts",
    "HistogramSpec",
    "JsonFormatter",
    "MetricSpec",
    "MetricsApp",
    "StatusApp",
    "collector",
    "export_to_otel",
    "metrics_app",
    "start_alerts",
    "status_app",
]
