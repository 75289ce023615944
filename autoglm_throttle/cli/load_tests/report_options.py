"""Objectives of a run and destinations of its report: options that ``load`` and ``replay`` share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.load_tests.option import Option
from autoglm_throttle.cli.load_tests.problems import ProblemList
from autoglm_throttle.cli.load_tests.send_options import time_s
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import LIMITS_S, Objectives
from autoglm_throttle.types import Priority

_DEFAULT_LIMITS: Final = ",".join(f"{priority.label}={limit_s:g}s" for priority, limit_s in LIMITS_S.items())

OPTIONS: Final = (
    Option("--slo", "TERMS", "objectives, such as 'p99<500ms,error<0.5%%,goodput.high>0.99,rps>=100/s'"),
    Option("--within", "LIMITS", f"a response later than this is not goodput (default: {_DEFAULT_LIMITS})"),
    Option("--title", "TEXT", "title of the report (default: host and shape)"),
    Option("--json", "FILE", "write the report as JSON"),
    Option("--html", "FILE", "write the report as one HTML page with plots"),
    Option("--format", "text|json", "output format (default: text)"),
    Option("--quiet", None, "show no progress"),
    Option("--dry-run", None, "print the plan, and send nothing"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Objectives of a run, and form and destinations of its report."""

    objectives: Objectives
    limits_s: Mapping[Priority, float]
    title: str | None
    json: Path | None
    html: Path | None
    as_json: bool
    """Whether the report itself goes to standard output."""
    quiet: bool
    dry_run: bool


def read(args: argparse.Namespace, problems: ProblemList) -> ReportOptions:
    """Read these options."""
    json_path = problems.read("--json", writable, args.json, None)
    html_path = problems.read("--html", writable, args.html, None)
    if json_path is not None and html_path is not None and json_path.resolve() == html_path.resolve():
        problems.add("--html", f"{html_path} is the file of --json: use another file")
    return ReportOptions(
        objectives=problems.read("--slo", _objectives, args.slo, Objectives()),
        limits_s=problems.read("--within", _limits, args.within, LIMITS_S),
        title=args.title,
        json=json_path,
        html=html_path,
        as_json=problems.read("--format", is_json, args.format, other=False),
        quiet=args.quiet,
        dry_run=args.dry_run,
    )


def _objectives(text: str) -> Objectives:
    if not text.strip():
        raise TrafficError(
            "contains no objective; is a variable not set? omit the option if no objective is intended"
        )
    return Objectives.parse(text)


def _limits(text: str) -> Mapping[Priority, float]:
    """Read ``high=200ms,low=5s``, or one limit for all. Omitted priorities keep their default."""
    if "=" not in text:
        return dict.fromkeys(Priority, time_s(text))
    limits = dict(LIMITS_S)
    for item in text.split(","):
        name, _, limit = item.partition("=")
        try:
            limits[Priority[name.strip().upper()]] = time_s(limit.strip())
        except KeyError:
            raise TrafficError(f"unknown priority {name.strip()!r}: high, mid or low") from None
    return limits


def is_json(text: str) -> bool:
    """Whether the output format is JSON.

    Raises:
        TrafficError: neither ``text`` nor ``json``.
    """
    if text not in ("text", "json"):
        raise TrafficError(f"{text!r} is neither text nor json")
    return text == "json"


def writable(text: str) -> Path:
    """Check a path before the run, which writes to it only at its end.

    Raises:
        TrafficError: the file cannot be written.
    """
    path = Path(text)
    if path.is_dir():
        raise TrafficError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise TrafficError(f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise TrafficError(f"{path} cannot be written")
    return path
