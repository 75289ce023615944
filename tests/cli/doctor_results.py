"""What `doctor` has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Doctor = Callable[..., tuple[int, list[dict[str, Any]]]]
"""Runs the command with settings; gives its status and what it found of the store."""

PASSWORD = "planted-s3cret"
"""Of every server and storage that has one; it may stand nowhere."""

WELL = ["connection", "round_trip", "clock", "version", "role", "eviction", "rights", "counting"]
"""What is looked at, in this order, on a server that is well."""


def by_item(findings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {finding["item"]: finding for finding in findings}


def not_well(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(f["item"], f["level"]) for f in findings if f["level"] != "ok"]
