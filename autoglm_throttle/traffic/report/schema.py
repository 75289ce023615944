"""The schema of a report, version 1: the types of its JSON, its writer and its reader.

Durations are seconds rounded to microseconds, shares are ratios, None stands where there is no data.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Literal, NoReturn, NotRequired, cast

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from autoglm_throttle.traffic.errors import TrafficError

SCHEMA = 1  # Incremented when a reader of the old schema would misread the new one
KIND = "autoglm-throttle-load"  # Value of ``kind``, which identifies a report


class About(TypedDict, total=False):
    """Software and machine that made the report; never part of a comparison."""

    library: str
    python: str
    system: str
    processor: str
    cores: int
    loop: str
    httptools: str
    command: str
    date: str


class LoadPart(TypedDict):
    """The planned load."""

    shape: str
    arrivals: str
    seed: int
    mix: dict[str, float]  # percent of the requests, by priority
    clients: int
    requests: list[str]  # labels, in order of their first kind
    loop: Literal["open", "closed"]
    planned: int
    duration_s: float
    sent_s: NotRequired[float]  # part of the plan that was sent; older reports lack it
    limits_s: dict[str, float]  # latency limit by priority: a later answer is no goodput


class ObjectiveResult(TypedDict):
    """One objective and its result; without a value the objective is not met."""

    term: str
    value: float | None
    unit: Literal["s", "ratio", "rps"]
    holds: bool


class VerdictPart(TypedDict):
    """The verdict, for machines and for people."""

    status: int  # the exit status: 0, 1, 3 or 130
    text: str
    valid: bool
    caveats: list[str]  # reasons why the run is not valid, each with a remedy
    aborted: bool
    objectives: list[ObjectiveResult]


class Times(TypedDict):
    """Durations of a set of requests."""

    count: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    p999_s: float | None
    max_s: float | None
    histogram: list[list[int]]  # lower bucket edge in microseconds, and count; rising


class Cost(TypedDict):
    """Units of work."""

    planned: float
    served: float


class Goodput(TypedDict):
    """Served within the latency limit of its priority."""

    requests: int
    ratio: float | None
    rps: float


class TallyDocument(TypedDict):
    """Results of a set of planned requests. Ratios are relative to planned requests, less skipped ones."""

    planned: int
    unsent: int  # planned, and skipped because the run was stopped
    classes: dict[str, int]  # by `RequestResult.label`, all eleven
    statuses: dict[str, int]
    reasons: dict[str, int]
    cost: Cost
    done_ratio: float | None
    error_ratio: float | None  # with dropped requests
    limited_ratio: float | None
    shed_ratio: float | None
    dropped_ratio: float | None
    goodput: Goodput
    rps: float  # answers; the window begins at the first answer and is as long as the sending
    response: Times  # of served requests, from the intended start
    service: Times  # of served requests, from the write
    first_byte: Times  # of served requests, from the intended start
    rejection: Times  # of rejected requests, from the intended start
    promised: Times  # Retry-After of rejections


class SegmentPart(TypedDict):
    """One segment of the shape."""

    name: str
    start_s: float
    end_s: float
    tally: TallyDocument
    priorities: dict[str, TallyDocument]


class RequestPart(TypedDict):
    """One kind of request."""

    label: str
    tally: TallyDocument


class PrioritySeconds(TypedDict):
    """One priority, second by second."""

    planned: list[int]
    served: list[int]
    limited: list[int]
    shed: list[int]
    failed: list[int]
    dropped: list[int]
    unsent: list[int]
    p95_s: list[float | None]


class Seconds(TypedDict):
    """Second by second of the intended start, one entry for each second of the plan; exact percentiles."""

    # The sum of the counts from `ok` to `unsent`: `failed` has no dropped requests here.

    planned: list[int]
    ok: list[int]
    degraded: list[int]
    limited: list[int]
    shed: list[int]
    failed: list[int]
    dropped: list[int]
    unsent: list[int]
    inflight: list[int]  # peak within the second
    p50_s: list[float | None]
    p95_s: list[float | None]
    p99_s: list[float | None]
    lag_p99_s: list[float | None]
    priorities: dict[str, PrioritySeconds]


class GeneratorPart(TypedDict):
    """Lag and resources of the generator; they decide if the run is valid."""

    lag: Times
    cpu_share: float | None
    overrun_s: float
    resent: int
    connections: int


class Document(TypedDict):
    """A report."""

    schema: int
    kind: str
    title: str
    about: About
    load: LoadPart
    verdict: VerdictPart
    totals: TallyDocument
    priorities: dict[str, TallyDocument]
    segments: list[SegmentPart]
    requests: list[RequestPart]
    seconds: Seconds
    watched: list[dict[str, float]]
    generator: GeneratorPart
    replay: dict[str, object] | None  # a recording compared with its replay


def dumps(document: Document) -> str:
    """Format a report as JSON, one line for each of its parts; equal documents give equal text.

    A number in an external part that JSON cannot represent raises ValueError.
    """
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
    try:
        _reader().validate_python(read, strict=True)
    except ValidationError as fault:
        place = ".".join(map(str, fault.errors()[0]["loc"]))
        raise TrafficError(f"the report is damaged: {place} is missing or of the wrong type") from None
    return cast(Document, read)


_reader = cache(lambda: TypeAdapter(Document))  # built on first use: it takes milliseconds


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")
