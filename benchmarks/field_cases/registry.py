"""All cases by name."""

from __future__ import annotations

from benchmarks.field_cases import (
    engine_cases,
    llm_cases,
    mixed_cases,
    scenario_cases,
    service_cases,
    storm_cases,
)
from benchmarks.field_cases.case import Case, Found, Job

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *service_cases.CASES,
        *mixed_cases.CASES,
        *llm_cases.CASES,
        *engine_cases.CASES,
        *storm_cases.CASES,
        *scenario_cases.CASES,
    )
}


def run(job: Job) -> Found:
    """Run a job in this process."""
    return CASES[job.case].run(job)
