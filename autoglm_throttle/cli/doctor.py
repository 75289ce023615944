"""``doctor``: checks that devices and store respond, and reports their problems."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from autoglm_throttle.cli import doctor_gpu
from autoglm_throttle.cli.command import load
from autoglm_throttle.cli.finding import Finding, Level
from autoglm_throttle.cli.output import FINE, PROBLEM_FOUND, painted, write, write_json
from autoglm_throttle.settings import Settings


def run(args: argparse.Namespace) -> int:
    """Diagnose the configured devices and store. A failure ends with 1, a warning does not.

    Raises:
        ConfigError: the settings have problems.
    """
    settings = load(args)
    findings = [*doctor_gpu.examine(settings), *_examine_store(settings)]
    ok = all(finding.level is not Level.FAIL for finding in findings)
    if args.format == "json":
        write_json({"ok": ok, "findings": [asdict(finding) for finding in findings]})
    else:
        write(_text(findings))
    return FINE if ok else PROBLEM_FOUND


def _examine_store(settings: Settings) -> list[Finding]:
    if settings.redis_url is not None:
        from autoglm_throttle.cli import doctor_redis

        return doctor_redis.examine(settings)
    if settings.user_storage is not None:
        from autoglm_throttle.cli import doctor_storage

        return doctor_storage.examine(settings)
    text = "neither REDIS_URL nor USER_STORAGE is set: each process counts users in its own memory"
    return [Finding("store", "configured", Level.OK, text)]


def _text(findings: Sequence[Finding]) -> str:
    width = max(len(finding.part) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{painted(finding.level, 4)}  {finding.part:<{width}}  {finding.message}")
        if finding.hint:
            lines.append(" " * (width + 8) + finding.hint)
    return "\n".join(lines)
