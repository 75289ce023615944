"""The report of a run: a plain document, and everything that is said about it. Pure."""

from autoglm_throttle.traffic.report.document import make
from autoglm_throttle.traffic.report.facts import LIMITS_S, Facts
from autoglm_throttle.traffic.report.objectives import Objectives
from autoglm_throttle.traffic.report.schema import Document

__all__ = ["LIMITS_S", "Document", "Facts", "Objectives", "make"]
