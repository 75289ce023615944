"""Builds the queries to a Prometheus server, and parses its answers.

An instant query returns a dead series for five minutes more. So a second query requests ``timestamp()``, the
time of each number's scrape. Both times are the server's own: clocks that differ do no harm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode

from autoglm_throttle.gpu.scrape.dcgm import NAMES
from autoglm_throttle.gpu.scrape.engines import PATTERNS
from autoglm_throttle.gpu.scrape.exposition import MalformedExpositionError, Series

PATH: Final = "/api/v1/query"

# Metrics of which at least one is enabled everywhere: one dates all numbers of a device. ``timestamp()``
# drops the name, so the server rejects a query for all of them: it would return each device repeatedly.
TIMESTAMP_METRICS: Final = (
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_GPU_UTIL_RATIO",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_USED_BYTES",
    "vllm:num_requests_running",
    "ray_vllm_num_requests_running",
    "sglang:num_running_reqs",
    "trtllm_num_requests_running",
    "tgi_queue_size",
    "nv_inference_pending_request_count",
)


def targets(base: str, selector: str = "") -> tuple[str, str]:
    """Return the requests for all numbers of devices and engines, and for their scrape times."""
    names = [*sorted(NAMES), *(pattern.pattern for pattern in PATTERNS.values())]
    matchers = f'__name__=~"{"|".join(names)}"'
    values = "{" + (f"{matchers},{selector}" if selector else matchers) + "}"
    # ``or`` leaves one time for each device.
    times = " or ".join(f"timestamp({name}{{{selector}}})" for name in TIMESTAMP_METRICS)
    path = f"{base.rstrip('/')}{PATH}?"
    return path + urlencode({"query": values}), path + urlencode({"query": times})


def read(values: bytes, times: bytes) -> tuple[list[Series], float]:
    """Parse both answers: the series, each with the time of its scrape, and the server's time.

    A device without a ``Hostname`` is on the host of its ``instance``.
    """
    scraped = {_identity(labels): value for labels, _, value in _vector(times)}
    series, queried_s = [], 0.0
    for labels, at_s, value in _vector(values):
        queried_s = max(queried_s, at_s)
        name, instance = labels.get("__name__", ""), labels.get("instance", "")
        has_host = labels.get("Hostname") or labels.get("hostname") or not instance
        located = labels if has_host else {**labels, "Hostname": instance}
        series.append(Series(name, located, value, scraped.get(_identity(labels))))
    return series, queried_s


def server_error(body: bytes) -> tuple[str, str]:
    """Return kind and text of the server's error; both empty if the answer is not in its format."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    if not isinstance(answer, dict) or answer.get("status") != "error":
        return "", ""
    return str(answer.get("errorType", "")), str(answer.get("error", ""))


_Point = tuple[Mapping[str, str], float, float]


def _vector(body: bytes) -> list[_Point]:
    try:
        answer: Any = json.loads(body)
        kind, result = answer["data"]["resultType"], answer["data"]["result"]
        points = [_point(one) for one in result] if kind == "vector" else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        text = f"it is no answer of a Prometheus server ({type(error).__name__})"
        raise MalformedExpositionError(text) from None
    if points is None:
        raise MalformedExpositionError("it is no vector")
    return points


def _point(one: Any) -> _Point:  # noqa: ANN401 - JSON
    at_s, text = one["value"]
    labels = {str(name): str(value) for name, value in one["metric"].items()}
    if not math.isfinite(at_s):
        raise ValueError
    return labels, float(at_s), float(text)


def _identity(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in labels.items() if pair[0] != "__name__")
