"""The schema of a report, version 1: durations in seconds, shares as ratios, None without data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.results import HISTOGRAMS

Document = dict[str, Any]  # A report, with the parts of `DOCUMENT`
Part = dict[str, Any]  # A part of a report

SCHEMA: Final = 1  # Incremented when a reader of the old schema would misread the new one
KIND: Final = "autoglm-throttle-load"  # Value of ``kind``, which identifies a report

UNITS: Final = ("s", "ratio", "rps")
NUMBER: Final = (int, float)
NUMBER_OR_NONE: Final = (int, float, type(None))

# A part is a dict by the names of its fields, where "?" marks a field that may be missing. ``{str: X}`` has
# any names, ``[X]`` is a list. Anything else is a type or a value, or a tuple of them.

TIMES: Final = {  # Durations of a set of requests
    "count": int,
    **dict.fromkeys(("mean_s", "p50_s", "p90_s", "p95_s", "p99_s", "p999_s", "max_s"), NUMBER_OR_NONE),
    "histogram": [[int]],  # lower bucket edge in microseconds, and count; rising
}

TALLY: Final = {  # Results of planned requests. Ratios are relative to planned requests, less skipped ones.
    "planned": int,
    "unsent": int,  # planned, and skipped because the run was stopped
    "classes": {str: int},  # by `RequestResult.label`, all eleven
    "statuses": {str: int},
    "reasons": {str: int},
    "cost": {"planned": NUMBER, "served": NUMBER},  # units of work
    "done_ratio": NUMBER_OR_NONE,
    "error_ratio": NUMBER_OR_NONE,  # with dropped requests
    "limited_ratio": NUMBER_OR_NONE,
    "shed_ratio": NUMBER_OR_NONE,
    "dropped_ratio": NUMBER_OR_NONE,
    # Served within the latency limit of its priority.
    "goodput": {"requests": int, "ratio": NUMBER_OR_NONE, "rps": NUMBER},
    "rps": NUMBER,  # answers; the window begins at the first answer and is as long as the sending
    **dict.fromkeys(HISTOGRAMS, TIMES),
}

COUNTS: Final = {name: [int] for name in ("planned", "limited", "shed", "failed", "dropped", "unsent")}

DOCUMENT: Final = {
    "schema": int,
    "kind": str,
    "title": str,
    "about": {  # software and machine that made the report; never part of a comparison
        **dict.fromkeys(("library?", "python?", "system?", "processor?", "loop?", "httptools?"), str),
        "command?": str,
        "date?": str,
        "cores?": int,
    },
    "load": {
        "shape": str,
        "arrivals": str,
        "seed": int,
        "mix": {str: NUMBER},  # percent of the requests, by priority
        "clients": int,
        "requests": [str],  # labels, in order of their first kind
        "loop": ("open", "closed"),
        "planned": int,
        "duration_s": NUMBER,
        "sent_s?": NUMBER,  # part of the plan that was sent; older reports lack it
        "limits_s": {str: NUMBER},  # latency limit by priority: a later answer is no goodput
    },
    "verdict": {
        "status": int,  # the exit status: 0, 1, 3 or 130
        "text": str,
        "valid": bool,
        "caveats": [str],  # reasons why the run is not valid, each with a remedy
        "aborted": bool,
        # Without a value an objective is not met.
        "objectives": [{"term": str, "value": NUMBER_OR_NONE, "unit": UNITS, "holds": bool}],
    },
    "totals": TALLY,
    "priorities": {str: TALLY},
    "segments": [
        {"name": str, "start_s": NUMBER, "end_s": NUMBER, "tally": TALLY, "priorities": {str: TALLY}}
    ],
    "requests": [{"label": str, "tally": TALLY}],  # by kind of request
    # One entry for each second of the plan, by intended start. `planned` is the sum of all counts but
    # `inflight`: `failed` has no dropped requests here. Percentiles are exact.
    "seconds": {
        **COUNTS,
        "ok": [int],
        "degraded": [int],
        "inflight": [int],  # peak within the second
        **{name: [NUMBER_OR_NONE] for name in ("p50_s", "p95_s", "p99_s", "lag_p99_s")},
        "priorities": {str: {**COUNTS, "served": [int], "p95_s": [NUMBER_OR_NONE]}},
    },
    "watched": [{str: NUMBER}],
    "generator": {  # it decides whether the run is valid
        "lag": TIMES,
        "cpu_share": NUMBER_OR_NONE,
        "overrun_s": NUMBER,
        "resent": int,
        "connections": int,
    },
    "replay": (dict, type(None)),  # a recording compared with its replay
}


def dumps(document: Document) -> str:
    """Format a report as JSON, one line for each part; a number that JSON cannot hold raises ValueError."""
    parts = (
        f"{json.dumps(name)}: {json.dumps(part, separators=(',', ':'), allow_nan=False)}"
        for name, part in document.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def loads(text: str) -> Document:
    """Parse a report; raise TrafficError for a text without one, or for a part that is not valid."""
    try:
        # json.loads accepts NaN and Infinity unless parse_constant rejects them.
        read = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as fault:
        raise TrafficError(f"this is no JSON: {fault}") from None
    if not isinstance(read, dict) or read.get("kind") != KIND:
        raise TrafficError(f'this is no report: its "kind" must be "{KIND}"')
    if read.get("schema") != SCHEMA:
        raise TrafficError(f"a report of schema {read.get('schema')!r}; this version reads schema {SCHEMA}")
    place = next(_damage(read, DOCUMENT), None)
    if place is not None:
        raise TrafficError(f"the report is damaged: {place[1:]} is missing or of the wrong type")
    return read


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")


def _damage(value: object, form: object) -> Iterator[str]:
    """Yield the places of missing parts and wrong types."""
    if isinstance(form, dict) and isinstance(value, dict):
        fields = dict.fromkeys(value, form[str]) if str in form else form
        for field, inner in fields.items():
            name = field if field in value else field.removesuffix("?")
            if name in value:
                yield from (f".{name}{place}" for place in _damage(value[name], inner))
            elif name == field:
                yield f".{name}"
    elif isinstance(form, list) and isinstance(value, list):
        for index, one in enumerate(value):
            yield from (f".{index}{place}" for place in _damage(one, form[0]))
    else:
        known = form if isinstance(form, tuple) else (form,)
        if type(value) not in known and value not in known:
            yield ""
