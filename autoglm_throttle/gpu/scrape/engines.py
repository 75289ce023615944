"""Converts the metrics of an inference engine to one row: running and queued requests, cache fill.

The names are those of vLLM 0.x and 1.x, SGLang 0.5, trtllm-serve 1.1, TGI 3 and Triton 2.60; under Ray with
``ray_`` and an underscore for the colon.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from autoglm_throttle.gpu.aggregate import ratio
from autoglm_throttle.gpu.scrape.exposition import Series
from autoglm_throttle.gpu.scrape.freshness import DatedRow
from autoglm_throttle.types import GpuSample

# Maximum length of a model's name, which appears in metrics; longer ones are truncated.
MOST_CHARACTERS: Final = 255
_Rows = list[tuple[Mapping[str, str], float]]


# Kind of engine -> field of a sample -> alternatives, of which the first that is present counts. The names
# of one alternative, without prefix, add up. ``kv_used_ratio`` is a share, 0..1, despite names such as
# ``perc``; TGI reports the parts of the share.
_TOKENS: Final = ("prompt_tokens_total generation_tokens_total",)
PRESETS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "vllm": {
        "running": ("num_requests_running",),
        "queued": ("num_requests_waiting",),
        "kv_used_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        "tokens_total": _TOKENS,
        "preemptions_total": ("num_preemptions_total",),
    },
    "sglang": {
        "running": ("num_running_reqs",),
        "queued": (  # Each queue of a prefill or a decode worker is absent in any other mode.
            "num_queue_reqs num_grammar_queue_reqs num_prefill_bootstrap_queue_reqs "
            "num_prefill_prealloc_queue_reqs num_prefill_inflight_queue_reqs "
            "num_decode_prealloc_queue_reqs num_decode_transfer_queue_reqs",
        ),
        "kv_used_ratio": ("token_usage",),
        "tokens_total": _TOKENS,
        "preemptions_total": ("num_retracted_requests_total",),
    },
    "trtllm": {
        "running": ("num_requests_running",),
        "queued": ("num_requests_waiting",),
        "kv_used_ratio": ("kv_cache_utilization",),
        "tokens_total": _TOKENS,
    },
    "tgi": {
        "running": ("batch_current_size",),
        "queued": ("queue_size",),
        "kv_used": ("batch_current_max_tokens",),
        "kv_total": ("batch_max_total_tokens",),
        # Prompts are counted as they arrive, so they are no progress.
        "tokens_total": ("request_generated_tokens_sum",),
    },
    "triton": {
        "running": ("trt_llm_request_metrics/scheduled",),
        "queued": ("trt_llm_request_metrics/waiting", "inference_pending_request_count"),
        "kv_used_ratio": ("trt_llm_kv_cache_block_metrics/fraction",),
    },
}
_COUNTS: Final = ("running", "queued", "tokens_total", "preemptions_total")
# Labels that are a part of the name: Triton's TensorRT-LLM backend reports several quantities under one.
_NAME_LABELS: Final = ("request_type", "kv_cache_block_type")
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
    preset = PRESETS[kind]
    reported = _by_name(series, kind)
    if not reported:
        return None
    models = {
        labels.get("model_name") or labels.get("model", "")
        for rows in reported.values()
        for labels, _ in rows
    } - {""}
    counts: dict[str, Any] = {field: _count(reported, preset.get(field, ())) for field in _COUNTS}
    return GpuSample(
        device=place,
        index=0,
        taken_at_s=now,
        source=source,
        host="" if is_reachable(place) else place,
        kind="engine",
        name=models.pop()[:MOST_CHARACTERS] if len(models) == 1 else "",
        kv_used_ratio=_fill(reported, preset),
        **counts,
    )


def parse_instances(series: Iterable[Series], *, source: str, now: float) -> list[DatedRow]:
    """Make a row of each engine whose series a Prometheus server returns: the instances of each kind."""
    found: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        for kind, pattern in PATTERNS.items():
            if pattern.fullmatch(one.name) and (place := one.labels.get("instance")):
                found.setdefault((kind, place[:MOST_CHARACTERS]), []).append(one)
    dated: list[DatedRow] = []
    for (kind, place), group in found.items():
        row = parse_engine(group, kind, source=source, now=now, place=place)
        if row is not None:
            stamps = [one.at_s for one in group if one.at_s is not None]
            # The server's localhost is not ours.
            dated.append((replace(row, host=place), None, max(stamps, default=None)))
    return dated


def _prefix(kind: str) -> str:
    return "nv_" if kind == "triton" else f"(?:ray_)?{kind}[:_]"


def _names(kind: str) -> set[str]:
    return {name for names in PRESETS[kind].values() for name in " ".join(names).split()}


# Kind of engine -> pattern of the names of its metrics, also as a label matcher of PromQL.
PATTERNS: Final = {
    kind: re.compile(f"{_prefix(kind)}(?:{'|'.join(sorted({name.split('/')[0] for name in _names(kind)}))})")
    for kind in PRESETS
}


def _by_name(series: Iterable[Series], kind: str) -> dict[str, _Rows]:
    prefix, names = re.compile(_prefix(kind)), _names(kind)
    reported: dict[str, _Rows] = {}
    for one in series:
        match = prefix.match(one.name)
        if match and math.isfinite(one.value):
            parts = [one.labels[label] for label in _NAME_LABELS if label in one.labels]
            name = "/".join([one.name[match.end() :], *parts])
            if name in names:
                reported.setdefault(name, []).append((one.labels, one.value))
    return reported


def _fill(reported: Mapping[str, _Rows], preset: Mapping[str, tuple[str, ...]]) -> float | None:
    fills = next((reported[name] for name in preset.get("kv_used_ratio", ()) if name in reported), [])
    parts = ratio(*(_count(reported, preset.get(name, ())) for name in ("kv_used", "kv_total")))
    return max((value for _, value in fills), default=parts)


def _count(reported: Mapping[str, _Rows], alternatives: tuple[str, ...]) -> int | None:
    for names in alternatives:
        found = [_added(reported[name]) for name in names.split() if name in reported]
        if found:
            return sum(found)
    return None


def _added(rows: _Rows) -> int:
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
