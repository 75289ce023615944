"""Converts the metrics of an inference engine to one row: running and queued requests, cache fill.

The names are those of vLLM 0.x and 1.x and of SGLang 0.5; under Ray with ``ray_`` and an underscore for the
colon.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from autoglm_throttle.gpu.scrape.exposition import Series
from autoglm_throttle.types import GpuSample

# Maximum length of a model's name, which appears in metrics; longer ones are truncated.
MOST_CHARACTERS: Final = 255
_Rows = list[tuple[Mapping[str, str], float]]


# Kind of engine -> field of a sample -> metric names without prefix; the first that is present counts.
# ``kv_used_ratio`` is a share, 0..1, despite names such as ``perc``.
PRESETS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "vllm": {
        "running": ("num_requests_running",),
        "queued": ("num_requests_waiting",),
        "kv_used_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "preemptions_total": ("num_preemptions_total",),
    },
    "sglang": {
        "running": ("num_running_reqs",),
        "queued": ("num_queue_reqs",),
        "kv_used_ratio": ("token_usage",),
        "preemptions_total": ("num_retracted_requests_total",),
    },
}
TOKENS: Final = ("prompt_tokens_total", "generation_tokens_total")  # Of every kind, added up
# Labels of processes that share a request: each of them counts it, so the largest value is taken.
RANK_LABELS: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})
# With priorities SGLang reports the sum under an empty label beside the parts.
PRIORITY_LABEL: Final = "priority"


def parse_engine(
    series: Iterable[Series], kind: str, *, source: str, now: float, place: str
) -> GpuSample | None:
    """Make one row of all series of an endpoint; None if no name of the kind is there with a number.

    Requests and tokens of several engines behind it (data parallel ranks, models, replicas) add up.
    The fullest cache counts, because a request that meets it waits. The row's device is ``place``
    (``host:port``) and, unless it is this host, its host.
    """
    reported, preset = _by_name(series, kind), PRESETS[kind]
    if not reported:
        return None
    tokens = [total for name in TOKENS if (total := _added(reported, (name,))) is not None]
    fills = [value for _, value in _first(reported, preset["kv_used_ratio"])]
    models = {labels.get("model_name", "") for rows in reported.values() for labels, _ in rows} - {""}
    return GpuSample(
        device=place,
        index=0,
        taken_at_s=now,
        source=source,
        host="" if is_reachable(place) else place,
        kind="engine",
        name=models.pop()[:MOST_CHARACTERS] if len(models) == 1 else "",
        running=_added(reported, preset["running"]),
        queued=_added(reported, preset["queued"]),
        kv_used_ratio=max(fills, default=None),
        tokens_total=sum(tokens) if tokens else None,
        preemptions_total=_added(reported, preset["preemptions_total"]),
    )


def _by_name(series: Iterable[Series], kind: str) -> dict[str, _Rows]:
    prefix = re.compile(rf"(?:ray_)?{kind}[:_]")
    names = {*TOKENS, *itertools.chain(*PRESETS[kind].values())}
    reported: dict[str, _Rows] = {}
    for one in series:
        match = prefix.match(one.name)
        if match and math.isfinite(one.value) and (name := one.name[match.end() :]) in names:
            reported.setdefault(name, []).append((one.labels, one.value))
    return reported


def _first(reported: Mapping[str, _Rows], names: tuple[str, ...]) -> _Rows:
    return next((reported[name] for name in names if name in reported), [])


def _added(reported: Mapping[str, _Rows], names: tuple[str, ...]) -> int | None:
    rows = _first(reported, names)
    if not rows:
        return None
    # Without the sum over the priorities, the parts are the whole.
    rows = [row for row in rows if row[0].get(PRIORITY_LABEL) == ""] or rows
    groups: dict[frozenset[tuple[str, str]], float] = {}
    for labels, value in rows:
        # Ranks of one engine share the key; replicas differ in other labels and add up.
        key = frozenset((name, text) for name, text in labels.items() if name not in RANK_LABELS)
        groups[key] = max(value, groups.get(key, -math.inf))
    return round(sum(groups.values()))


def is_reachable(place: str) -> bool:
    """Return whether ``host:port`` is this host: a loopback address or ``localhost``."""
    host = place.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
