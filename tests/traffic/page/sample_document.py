"""A sample report with every part: six segments, rejections, a second without responses, a monitored GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autoglm_throttle.traffic.report.schema import Document, Part

CAPACITY = 170
LEVELS = (
    ("calm", 7, 85),
    ("at 0.86", 9, 146),
    ("at 0.91", 9, 155),
    ("2x", 12, 340),
    ("5x", 13, 850),
    ("recovery", 10, 85),
)
SHARES = {"high": 0.1, "mid": 0.3, "low": 0.6}


def times(middle_s: float, count: int) -> Part:
    """Durations around a middle, with a tail."""
    histogram: dict[int, int] = {}
    for number in range(count):
        us = int(1e6 * middle_s * math.exp(0.5 * math.log((number + 0.5) / (count - number - 0.5))))
        surplus = max(0, us.bit_length() - 8)
        edge = us >> surplus << surplus
        histogram[edge] = histogram.get(edge, 0) + 1
    mean, *rest = [round(middle_s * ratio, 6) if count else None for ratio in (1.2, 1, 3, 4.4, 10, 31, 60)]
    p50, p90, p95, p99, p999, longest = rest
    return {
        "count": count,
        "mean_s": mean,
        "p50_s": p50,
        "p90_s": p90,
        "p95_s": p95,
        "p99_s": p99,
        "p999_s": p999,
        "max_s": longest,
        "histogram": [[edge, number] for edge, number in sorted(histogram.items())],
    }


def tally(counts: Iterable[int], seconds: float) -> Part:
    """Tally of planned, served, limited and failed requests; the rest was shed."""
    planned, served, limited, failed = counts
    rejected = planned - served - limited - failed
    classes = {
        "ok": served - served // 50,
        "degraded": served // 50,
        "limited": limited,
        "shed": rejected,
    }
    classes |= {"client_error": 0, "server_error": failed, "connection": 0, "timeout": 0, "malformed": 0}
    classes |= {"unanswered": 0, "dropped": 0}
    part = (lambda number: number / planned) if planned else lambda _: None
    refused = {"rate:low": limited, "queue:slow": rejected}
    return {
        "planned": planned,
        "unsent": 0,
        "classes": classes,
        "statuses": {
            str(s): n for s, n in ((200, served), (429, limited), (500, failed), (503, rejected)) if n
        },
        "reasons": {reason: number for reason, number in refused.items() if number},
        "cost": {"planned": float(planned), "served": float(served)},
        "done_ratio": part(planned),
        "error_ratio": part(failed),
        "limited_ratio": part(limited),
        "shed_ratio": part(rejected),
        "dropped_ratio": part(0),
        "goodput": {"requests": served, "ratio": part(served), "rps": served / seconds},
        "rps": planned / seconds,
        "response": times(0.1, served),
        "service": times(0.08, served),
        "first_byte": times(0.1, served),
        "rejection": times(0.004, limited + rejected),
        "promised": times(1.0, limited + rejected),
    }


def fates(planned: int, name: str) -> tuple[int, int, int]:
    """Served, limited and failed of one second of a priority; the rest was rejected."""
    over = planned / SHARES[name] > CAPACITY
    served = planned if name == "high" or not over else min(planned, {"mid": 60, "low": 75}[name])
    limited = min(planned - served, max(0, planned - 100)) if name == "low" else 0
    return served, limited, 0


def document(*, shape: str = "step:85,146,155,340,850,85:10") -> Document:
    """The report."""
    rows: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in SHARES}
    segments: list[Part] = []
    at_s = 0
    for label, length_s, rps in LEVELS:
        parts = {}
        for name, share in SHARES.items():
            planned = round(rps * share)
            one = fates(planned, name)
            rows[name] += [(planned, *one)] * length_s
            parts[name] = tally([planned * length_s, *(number * length_s for number in one)], length_s)
        whole = [sum(round(rps * share) for share in SHARES.values()) * length_s]
        whole += [
            sum(fates(round(rps * share), name)[field] for name, share in SHARES.items()) * length_s
            for field in range(3)
        ]
        segments.append(
            {
                "name": label,
                "start_s": float(at_s),
                "end_s": float(at_s + length_s),
                "tally": tally(whole, length_s),
                "priorities": parts,
            }
        )
        at_s += length_s
    priorities = {name: tally(map(sum, zip(*row, strict=True)), at_s) for name, row in rows.items()}
    totals = [tuple(map(sum, zip(*each, strict=True))) for each in zip(*rows.values(), strict=True)]
    load = [rps / CAPACITY for _, length_s, rps in LEVELS for _ in range(length_s)]
    p50: list[float | None] = [0.02 + 0.2 * min(1.0, x / 2) + 0.01 * math.sin(n) for n, x in enumerate(load)]
    p50[20] = None
    held: Part = {
        "status": 1,
        "text": "failed: p99.low@5x<500ms",
        "valid": True,
        "caveats": [],
        "aborted": False,
        "objectives": [
            {"term": "error<0.5%", "value": 0.0, "unit": "ratio", "holds": True},
            {"term": "p99.low@5x<500ms", "value": 1.0, "unit": "s", "holds": False},
            {"term": "goodput.high>0.99", "value": 1.0, "unit": "ratio", "holds": True},
        ],
    }
    return {
        "schema": 1,
        "kind": "autoglm-throttle-load",
        "title": "POST http://127.0.0.1:8000/v1/predict at 85/s to 850/s",
        "about": {
            "library": "1.0",
            "python": "3.11",
            "system": "Linux",
            "cores": 2,
            "command": "autoglm-throttle load",
        },
        "load": {
            "shape": shape,
            "arrivals": "poisson",
            "seed": 7,
            "mix": {"high": 10.0, "mid": 30.0, "low": 60.0},
            "clients": 8,
            "requests": ["POST /v1/predict", "GET /healthz"],
            "loop": "open",
            "planned": sum(total[0] for total in totals),
            "duration_s": float(at_s),
            "limits_s": {"high": 0.5, "mid": 1.0, "low": 2.0},
        },
        "verdict": held,
        "totals": tally(map(sum, zip(*totals, strict=True)), at_s),
        "priorities": priorities,
        "segments": segments,
        "requests": [
            {"label": "POST /v1/predict", "tally": priorities["low"]},
            {"label": "GET /healthz", "tally": priorities["high"]},
        ],
        "seconds": {
            "planned": [planned for planned, *_ in totals],
            "ok": [served - served // 50 for _, served, *_ in totals],
            "degraded": [served // 50 for _, served, *_ in totals],
            "limited": [limited for _, _, limited, _ in totals],
            "shed": [planned - served - limited - failed for planned, served, limited, failed in totals],
            "failed": [failed for *_, failed in totals],
            "dropped": [0] * at_s,
            "unsent": [0] * at_s,
            "inflight": [round(10 * x * x) for x in load],
            "p50_s": p50,
            "p95_s": [None if x is None else 2.5 * x for x in p50],
            "p99_s": [None if x is None else 5 * x for x in p50],
            "lag_p99_s": [0.0011 + 0.0003 * math.sin(n / 3) for n in range(at_s)],
            "priorities": {name: _seconds(row, name) for name, row in rows.items()},
        },
        "watched": [
            {
                "t_s": n + 0.4,
                "factor_ratio": max(0.12, min(1.0, 1.9 - x)),
                "gpu_utilization_ratio": min(1.0, x),
                "gpu_power_w": 70 + 630 * min(1.0, x),
                "inflight": float(min(32, round(10 * x))),
                "waiting": float(max(0, round(8 * (x - 1)))),
            }
            for n, x in enumerate([*load, 0.0, 0.0])
        ],
        "generator": {
            "lag": times(0.0007, len(load)),
            "cpu_share": 0.18,
            "overrun_s": 0.001,
            "resent": 0,
            "connections": 256,
        },
        "replay": None,
    }


def _seconds(row: list[tuple[int, int, int, int]], name: str) -> Part:
    slow = {"high": 0.1, "mid": 0.3, "low": 0.6}[name]
    return {
        "planned": [planned for planned, *_ in row],
        "served": [served for _, served, *_ in row],
        "limited": [limited for _, _, limited, _ in row],
        "shed": [planned - served - limited - failed for planned, served, limited, failed in row],
        "failed": [failed for *_, failed in row],
        "dropped": [0] * len(row),
        "unsent": [0] * len(row),
        "p95_s": [slow * (1 + 0.3 * math.sin(n / 2)) for n in range(len(row))],
    }
