"""Overloads over real sockets: 404 answers beside real work, a killed worker, four workers."""

from __future__ import annotations

import pytest

from benchmarks.socket_cases import overloads

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

SECONDS = 12.0
KEPT_AT_LEAST = 0.8
"""Real answers in time beside 404s over those without, by a run of each; 0.23 with requests for work."""

HIGH_AT_LEAST = 0.8
"""The benchmark has the bars; this machine may be busy."""


def test_missing_paths_leave_real_work_in_time() -> None:
    """On one server; `benchmarks.field_sockets` has the others."""
    alone = overloads.cheap_beside_gpu("uvicorn", 0, SECONDS)
    beside = overloads.cheap_beside_gpu("uvicorn", 600, SECONDS)
    assert beside["missing"]["client_error"] > 0
    assert beside["in_time_rps"] >= KEPT_AT_LEAST * alone["in_time_rps"] > 0.0, (alone, beside)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_worker_returns_to_goodput_under_overload(workers: int) -> None:
    found = overloads.restart(workers, 3.0, 24.0, kill_s=2.0)
    share = found["in_time"]
    assert share["high"] >= HIGH_AT_LEAST, found
    assert share["high"] > share["mid"] > share["low"], found


def test_four_workers_serve_the_high_class_at_5x() -> None:
    found = overloads.workers(4, 5.0, SECONDS, capacity_rps=50.0, fresh=True)
    share = found["in_time"]
    assert len({worker["pid"] for worker in found["workers"]}) > 1
    assert share["high"] >= HIGH_AT_LEAST, found
    assert share["high"] > share["mid"] > share["low"], found
