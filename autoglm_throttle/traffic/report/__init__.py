"""The report of a load test: a plain document, its text, and its comparison with another. Pure."""

from autoglm_throttle.traffic.report.compare import Comparison, compare, comparison
from autoglm_throttle.traffic.report.document import make
from autoglm_throttle.traffic.report.objectives import Objectives
from autoglm_throttle.traffic.report.progress import ProgressLine
from autoglm_throttle.traffic.report.run_info import LIMITS_S, ReplayInfo, RunInfo
from autoglm_throttle.traffic.report.schema import Document
from autoglm_throttle.traffic.report.text import dumps, loads
from autoglm_throttle.traffic.report.text_report import lines

__all__ = [
    "LIMITS_S",
    "Comparison",
    "Document",
    "Objectives",
    "ProgressLine",
    "ReplayInfo",
    "RunInfo",
    "compare",
    "comparison",
    "dumps",
    "lines",
    "loads",
    "make",
]
