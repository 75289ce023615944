"""Objectives of a run and destinations of its report: options that ``load`` and ``replay`` share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.lab.faults import Faults
from autoglm_throttle.cli.lab.option import Option
from autoglm_throttle.cli.lab.sending import time_s
from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import LIMITS_S, Objectives

_USUAL: Final = ",".join(f"{priority.label}={limit_s:g}s" for priority, limit_s in LIMITS_S.items())

OPTIONS: Final = (
    Option("--slo", "TERMS", "objectives, such as 'p99<500ms,error<0.5%%,goodput.high>0.99,rps>=100/s'"),
    Option("--within", "LIMITS", f"an answer later than this is no goodput (default: {_USUAL})"),
    Option("--title", "TEXT", "of the report (default: host and shape)"),
    Option("--json", "FILE", "write the report as JSON"),
    Option("--html", "FILE", "write the report as one HTML page with plots"),
    Option("--format", "text|json", "of what is printed at the end (default: text)"),
    Option("--quiet", None, "show no progress"),
    Option("--dry-run", None, "print what would be sent, and send nothing"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
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


def read(args: argparse.Namespace, faults: Faults) -> Judging:
    """Read these options."""
    told = faults.read("--json", writable, args.json, None)
    page = faults.read("--html", writable, args.html, None)
    if told is not None and page is not None and told.resolve() == page.resolve():
        faults.note("--html", f"{page} is what --json writes: name another file")
    return Judging(
        objectives=faults.read("--slo", _objectives, args.slo, Objectives()),
        limits_s=faults.read("--within", _limits, args.within, LIMITS_S),
        title=args.title,
        json=told,
        html=page,
        as_json=faults.read("--format", is_json, args.format, other=False),
        quiet=args.quiet,
        dry_run=args.dry_run,
    )


def _objectives(text: str) -> Objectives:
    if not text.strip():
        raise TrafficError("states no objective; a variable that is not set? leave it out if none is meant")
    return Objectives.parse(text)


def _limits(text: str) -> Mapping[Priority, float]:
    """Read ``high=200ms,low=5s``, or one limit for all. Omitted priorities keep their default."""
    if "=" not in text:
        return dict.fromkeys(Priority, time_s(text))
    limits = dict(LIMITS_S)
    for word in text.split(","):
        name, _, limit = word.partition("=")
        try:
            limits[Priority[name.strip().upper()]] = time_s(limit.strip())
        except KeyError:
            raise TrafficError(f"unknown priority {name.strip()!r}: high, mid or low") from None
    return limits


def is_json(word: str) -> bool:
    """Whether the output format is JSON.

    Raises:
        TrafficError: neither ``text`` nor ``json``.
    """
    if word not in ("text", "json"):
        raise TrafficError(f"{word!r} is neither text nor json")
    return word == "json"


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
