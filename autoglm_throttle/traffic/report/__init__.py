"""The report of a load test: a plain document, its text, and its comparison with another. Pure."""

from autoglm_throttle.traffic.report.document import LIMITS_S, ReplayInfo, RunInfo, make
from autoglm_throttle.traffic.report.objectives import Objectives
from autoglm_throttle.traffic.report.schema import Document, dumps, loads
from autoglm_throttle.traffic.report.text_report import ProgressLine, compare, comparison, lines

__all__ = [
    "LIMITS_S",
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
