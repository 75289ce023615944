"""``doctor``: checks that devices and store respond, and reports their problems."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

from autoglm_throttle.cli import doctor_gpu
from autoglm_throttle.cli.doctor_result import DoctorResult
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, add_sources, colored, load, write, write_json
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.advice import WITH_LIMIT
from autoglm_throttle.settings.field_types import plain

add_arguments = add_sources


def run(args: argparse.Namespace) -> int:
    """Diagnose the configured devices and store. A failure ends with 1, a warning does not."""
    settings = load(args)
    results = doctor_gpu.diagnose(settings)
    if settings.store.redis_url is None:
        text = "REDIS_URL is not set: each process counts user limits in its own memory"
        results.append(DoctorResult("store", "configured", "ok", text))
    else:
        from autoglm_throttle.cli import doctor_redis

        results += doctor_redis.diagnose(settings)
    results += _diagnose_objective(settings)
    ok = all(result.level != "fail" for result in results)
    if args.format == "json":
        write_json({"ok": ok, "findings": [asdict(result) for result in results]})
    else:
        write(_text(results))
    return EXIT_OK if ok else PROBLEM_FOUND


def _diagnose_objective(settings: Settings) -> list[DoctorResult]:
    """Report the objective for a complete response; nothing where no limit aims at one."""
    slo_s = settings.concurrency.slo_s
    if settings.control.policy not in WITH_LIMIT:
        return []
    if slo_s is not None:
        text = f"the concurrency limit aims at complete responses within {plain(slo_s)} s"
        return [DoctorResult("limit", "objective", "ok", text, value=slo_s)]
    text = "SLO_S is not set: each process learns its objective, at least 2 s; its snapshot shows it"
    hint = "set SLO_S to the time that your callers accept"
    return [DoctorResult("limit", "objective", "warn", text, hint)]


def _text(results: Sequence[DoctorResult]) -> str:
    width = max(len(result.part) for result in results)
    lines = []
    for result in results:
        lines.append(f"{colored(result.level, 4)}  {result.part:<{width}}  {result.message}")
        if result.hint:
            lines.append(" " * (width + 8) + result.hint)
    return "\n".join(lines)
