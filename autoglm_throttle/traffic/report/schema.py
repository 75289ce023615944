"""The schema of a report, version 1: the types of its JSON.

Durations are seconds rounded to microseconds, shares are ratios, None stands where there is no data.
In ``seconds``, ``failed`` excludes dropped requests, so that the columns of each second add up. The error
ratio of a ``TallyDocument`` includes them.
"""

from __future__ import annotations

from typing import Literal, TypedDict

SCHEMA = 1
"""Incremented when a reader of the old schema would misread the new one."""

KIND = "autoglm-throttle-load"
"""Value of ``kind``, which identifies a report."""


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


class OptionalLoadPart(TypedDict, total=False):
    """Keys that older reports lack."""

    sent_s: float
    """Seconds of the plan that were sent; less than ``duration_s`` if the run was stopped."""


class LoadPart(OptionalLoadPart):
    """The planned load."""

    shape: str
    arrivals: str
    seed: int
    mix: dict[str, float]
    """Percent of the requests, by priority."""
    clients: int
    requests: list[str]
    """Labels, in order of their first kind."""
    loop: Literal["open", "closed"]
    planned: int
    duration_s: float
    limits_s: dict[str, float]
    """Latency limit by priority: a later answer is no goodput."""


class ObjectiveResult(TypedDict):
    """One objective and its result."""

    term: str
    value: float | None
    """None: no data, so the objective is not met."""
    unit: Literal["s", "ratio", "rps"]
    holds: bool


class VerdictPart(TypedDict):
    """The verdict, for machines and for people."""

    status: int
    """The exit status: 0, 1, 3 or 130."""
    text: str
    valid: bool
    caveats: list[str]
    """Reasons why the run is not valid, each with a remedy."""
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
    histogram: list[list[int]]
    """Lists of two: lower bucket edge in microseconds, and count; rising."""


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
    unsent: int
    """Planned, and skipped because the run was stopped."""
    classes: dict[str, int]
    """By ``RequestResult.label``, all eleven."""
    statuses: dict[str, int]
    reasons: dict[str, int]
    cost: Cost
    done_ratio: float | None
    error_ratio: float | None
    limited_ratio: float | None
    shed_ratio: float | None
    dropped_ratio: float | None
    goodput: Goodput
    rps: float
    """Answers per second; the window begins at the first answer and is as long as the sending."""
    response: Times
    """Served requests, from the intended start."""
    service: Times
    """Served requests, from the write."""
    first_byte: Times
    """Served requests, from the intended start."""
    rejection: Times
    """Rejected requests, from the intended start."""
    promised: Times
    """Values of Retry-After in rejections."""


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
    """Second by second of the intended start; every list has one entry for each second of the plan.

    ``planned`` is the sum of ``ok``, ``degraded``, ``limited``, ``shed``, ``failed``, ``dropped`` and
    ``unsent``.
    """

    planned: list[int]
    ok: list[int]
    degraded: list[int]
    limited: list[int]
    shed: list[int]
    failed: list[int]
    dropped: list[int]
    unsent: list[int]
    inflight: list[int]
    """Peak in flight within the second."""
    p50_s: list[float | None]
    """Response time of served requests; exact."""
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
    replay: dict[str, object] | None
    """A recording compared with its replay; None if the load was no replay."""
