"""Our load generator in a process of its own, as its peers; prints its figures as JSON."""

from __future__ import annotations

import json
import sys
from math import isnan
from typing import Any

from autoglm_throttle.traffic.generator import ClientOptions, TargetUrl, launch
from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_source import RequestSource

CONNECTIONS = 64
AT_ONCE_S = 0.1
"""Seconds in which all requests of the row without a pause are due; then the backlog is sent."""

EXPECTED_RPS = 20_000
"""Requests for each second of the row."""

PACED_RPS = 5000


def send(port: int, seconds: float, *, paced: bool) -> dict[str, Any]:
    """Send at a fixed rate, or as fast as responses arrive."""
    rate_rps, options = PACED_RPS, ClientOptions(connections=CONNECTIONS)
    if not paced:
        rate_rps = round(EXPECTED_RPS * seconds / AT_ONCE_S)
        seconds, options = (
            AT_ONCE_S,
            ClientOptions(connections=CONNECTIONS, max_inflight=10**8, timeout_s=300.0),
        )
    load = RequestSource(
        make_plan(LoadShape.parse(f"fixed:{rate_rps}:{seconds}"), Arrivals.UNIFORM, PriorityMix())
    )
    result = launch(load, TargetUrl(port=port), options)
    total, lag = result.total(), Histogram()
    for late_s in result.request_log.lag_s:
        if not isnan(late_s):
            lag.record(late_s)
    effort = result.run_cost
    return {
        "answers": total.admitted,
        "failed": total.failed,
        "elapsed_s": effort.elapsed_s,
        "cpu_s": (effort.cpu_share or 0.0) * effort.elapsed_s,
        "lag_p99_s": lag.percentile(0.99),
    }


if __name__ == "__main__":
    print(json.dumps(send(int(sys.argv[1]), float(sys.argv[2]), paced=sys.argv[3] == "paced")))
