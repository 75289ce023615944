"""The form of a report, schema 1: what a run's JSON holds, as types.

Durations are seconds rounded to microseconds, shares are ratios, None stands where there is no data.
Within ``seconds`` the failed exclude the dropped, so that every second adds up; in a ``Tally`` the error
ratio includes them.
"""

from __future__ import annotations

from typing import Literal, TypedDict

SCHEMA = 1
"""The number that goes up when a reader of the old form would misread the new one."""

KIND = "autoglm-throttle-load"
"""What the first lines of a report say it is."""


class About(TypedDict, total=False):
    """Who made the report, with what; never part of a comparison."""

    library: str
    python: str
    system: str
    processor: str
    cores: int
    loop: str
    httptools: str
    command: str
    date: str


class Sent(TypedDict, total=False):
    """What reports did not always say."""

    sent_s: float
    """How far the sending came; less than ``duration_s`` if the run was stopped."""


class LoadPart(Sent):
    """What was to be sent."""

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
    """By priority: an answer later than this is no goodput."""


class Judged(TypedDict):
    """One objective and what became of it."""

    term: str
    value: float | None
    """None: no data, and so it does not hold."""
    unit: Literal["s", "ratio", "rps"]
    holds: bool


class VerdictPart(TypedDict):
    """The judgement, for machines and for people."""

    status: int
    """The exit status: 0, 1, 3 or 130."""
    text: str
    valid: bool
    doubts: list[str]
    """Why the run is not valid; each says what to do."""
    aborted: bool
    objectives: list[Judged]


class Times(TypedDict):
    """Durations of some requests."""

    count: int
    mean_s: float | None
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None
    p99_s: float | None
    p999_s: float | None
    max_s: float | None
    histogram: list[list[int]]
    """Lower bucket edges in microseconds with their counts, rising: lists of two."""


class Cost(TypedDict):
    """Units of work."""

    planned: float
    served: float


class Goodput(TypedDict):
    """Served within the latency limit of its priority."""

    requests: int
    ratio: float | None
    rps: float


class Tally(TypedDict):
    """What became of some planned requests. Ratios are over the planned, less those left out."""

    planned: int
    unsent: int
    """Planned, and left out because the run was stopped."""
    classes: dict[str, int]
    """By ``Ending.label``, all eleven."""
    statuses: dict[str, int]
    reasons: dict[str, int]
    cost: Cost
    done_ratio: float | None
    error_ratio: float | None
    limited_ratio: float | None
    rejected_ratio: float | None
    dropped_ratio: float | None
    goodput: Goodput
    rps: float
    """Answers per second to these requests, over as much time from the first of them as the sending took."""
    response: Times
    """From the intended start, of the served."""
    service: Times
    """From the write, of the served."""
    first_byte: Times
    """From the intended start, of the served."""
    refusal: Times
    """From the intended start, of the refused."""
    promised: Times
    """What Retry-After asked for, of the refused."""


class SegmentPart(TypedDict):
    """One stretch of the shape."""

    name: str
    start_s: float
    end_s: float
    tally: Tally
    priorities: dict[str, Tally]


class RequestPart(TypedDict):
    """One kind of request."""

    label: str
    tally: Tally


class PrioritySeconds(TypedDict):
    """One priority, second by second."""

    planned: list[int]
    served: list[int]
    limited: list[int]
    rejected: list[int]
    failed: list[int]
    dropped: list[int]
    unsent: list[int]
    p95_s: list[float | None]


class Seconds(TypedDict):
    """Second by second of the intended start; every list has one entry for each second of the plan.

    ``planned`` is the sum of ``ok``, ``degraded``, ``limited``, ``rejected``, ``failed``, ``dropped`` and
    ``unsent``.
    """

    planned: list[int]
    ok: list[int]
    degraded: list[int]
    limited: list[int]
    rejected: list[int]
    failed: list[int]
    dropped: list[int]
    unsent: list[int]
    inflight: list[int]
    """The most in flight at one time within the second."""
    p50_s: list[float | None]
    """Response, of the served; exact."""
    p95_s: list[float | None]
    p99_s: list[float | None]
    lag_p99_s: list[float | None]
    priorities: dict[str, PrioritySeconds]


class GeneratorPart(TypedDict):
    """What the generator needed; it tells whether the run may be believed."""

    lag: Times
    cpu_share: float | None
    overrun_s: float
    resent: int
    connections: int
    processes: int


class Document(TypedDict):
    """A report."""

    schema: int
    kind: str
    title: str
    about: About
    load: LoadPart
    verdict: VerdictPart
    totals: Tally
    priorities: dict[str, Tally]
    segments: list[SegmentPart]
    requests: list[RequestPart]
    seconds: Seconds
    watched: list[dict[str, float]]
    generator: GeneratorPart
    replay: dict[str, object] | None
    """A recording compared with its replay; None if the load was no replay."""
