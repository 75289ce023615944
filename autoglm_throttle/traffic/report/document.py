"""The document of a run: made from its sheet, written as JSON, read again."""

from __future__ import annotations

from autoglm_throttle.traffic.report.facts import Facts
from autoglm_throttle.traffic.report.schema import Document
from autoglm_throttle.traffic.result import Result


def make(result: Result, facts: Facts) -> Document:
    """Work out the report of a finished run.

    Raises:
        RuntimeError: a request has neither ended nor been left out, which is a fault of the generator.
    """
    raise NotImplementedError
