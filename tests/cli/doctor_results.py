"""Helpers for the results of `doctor`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Doctor = Callable[..., tuple[int, list[dict[str, Any]]]]
"""Runs the command with settings; returns its status and the results about the store."""

PASSWORD = "planted-s3cret"
"""Password of every server and storage; no output may contain it."""

WELL = ["connection", "round_trip", "clock", "version", "role", "eviction", "rights", "counting"]
"""Items checked on a healthy server, in this order."""


def by_item(findings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {finding["item"]: finding for finding in findings}


def not_well(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(f["item"], f["level"]) for f in findings if f["level"] != "ok"]
