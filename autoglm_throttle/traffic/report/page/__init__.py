"""The HTML page of a report. Pure: document in, text out."""

from autoglm_throttle.traffic.report.page.page import render

__all__ = ["render"]
