"""The HTML page of a report. Pure: from the document to text."""

from autoglm_throttle.traffic.report.page.page import render

__all__ = ["render"]
