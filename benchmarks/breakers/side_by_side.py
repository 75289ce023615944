"""Total time of concurrent threads that call a slow dependency through a closed breaker."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial

from benchmarks import harness
from benchmarks.breakers.candidates import CANDIDATES, Function
from benchmarks.breakers.cost import BARE, LONG_S
from benchmarks.breakers.scale import Scale

THREADS = 8
CALL_S = 0.1


def slow() -> int:
    """Succeed slowly."""
    time.sleep(CALL_S)
    return 1


def together(fn: Function) -> float:
    """Measure the seconds until the last thread has its response."""
    start = threading.Barrier(THREADS + 1)

    def caller() -> None:
        start.wait()
        fn()

    callers = [threading.Thread(target=caller) for _ in range(THREADS)]
    for one in callers:
        one.start()
    start.wait()
    begun = time.perf_counter()
    for one in callers:
        one.join()
    return time.perf_counter() - begun


def threads(scale: Scale) -> dict[str, float]:
    """Measure the median seconds of each candidate."""
    rows: dict[str, Callable[[], float]] = {BARE: partial(together, slow)}
    rows |= {kind.name: partial(together, kind(LONG_S).function(slow)) for kind in CANDIDATES}
    seen = harness.interleave(rows, scale.side_by_side)
    return {name: statistics.median(seconds) for name, seconds in seen.items()}
