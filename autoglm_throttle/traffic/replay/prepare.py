"""From recorded requests to a load, with what became of them at the time beside it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from autoglm_throttle.model import Priority
from autoglm_throttle.traffic.arrivals import Plan
from autoglm_throttle.traffic.convert.fill import Fill, Missing
from autoglm_throttle.traffic.load import Load, Request
from autoglm_throttle.traffic.record.entry import Entry
from autoglm_throttle.traffic.record.redaction import MASK
from autoglm_throttle.traffic.replay.cut import Cut

UNSTATED = Priority.MID
"""Where neither the throttle nor the client said a priority: the default of ``PRIORITY_DEFAULT``."""

OF_THE_CONNECTION = frozenset(
    (
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""Fields that say how one connection carried a request: the sender writes its own."""

DECISIONS = ("none", "admitted", "degraded", "limited", "rejected")
"""What became of a request as its client sees it: see `seen`."""


STRANGER = "unknown-"
"""How the texts begin that stand for those of whom nothing was recorded; a number follows."""


@dataclass(slots=True)
class Recorded:
    """What became of the played requests when they were recorded, in order."""

    statuses: array[int] = field(default_factory=lambda: array("H"))
    decisions: bytearray = field(default_factory=bytearray)
    """Indices into `DECISIONS`."""
    ms: array[float] = field(default_factory=lambda: array("f"))
    """From arrival to the end."""
    judged: bool = False
    """Whether a throttle looked at any; without one a recording cannot tell what a fallback answered."""

    def note(self, entry: Entry) -> None:
        """One more."""
        self.statuses.append(entry.status)
        self.decisions.append(DECISIONS.index(seen(entry.status, degraded=entry.decision == "degraded")))
        self.ms.append(entry.ms)
        self.judged = self.judged or bool(entry.decision)

    @property
    def knows(self) -> bool:
        """Whether it tells of any answer or decision."""
        return any(self.decisions) or any(self.statuses)

    def __len__(self) -> int:
        return len(self.statuses)


@dataclass(frozen=True, slots=True)
class Replay:
    """A load made from a recording."""

    load: Load
    recorded: Recorded | None
    """One loop of it: request ``n`` of the plan is number ``n % len(recorded)``; None of a trace."""
    notes: tuple[str, ...] = ()
    """What could not be read, and what was left out."""


def seen(status: int, *, degraded: bool) -> str:
    """What became of a request as its client sees it, which is the same then and now.

    Whether a throttle or the application itself said 429 or 503 is nothing that an answer tells.

    Args:
        status: of the answer; 0: there was none.
        degraded: whether a fallback made it.
    """
    if degraded and 200 <= status < 300:
        return "degraded"
    return {0: "none", 429: "limited", 503: "rejected"}.get(status, "admitted")


def prepare(
    entries: Iterable[Entry],
    cut: Cut | None = None,
    bodies: Fill | None = None,
    *,
    priority_header: str = "x-priority",
    decided: bool = False,
) -> Replay:
    """The load that a recording stands for.

    Requests that look alike share one kind, so what is kept in memory is every different request once and
    about 30 bytes for each of all, and 100 more where nobody knows whose it is: each request without a
    client is a client of its own. Priority fields are sent as they were recorded.

    Args:
        entries: in order of time.
        cut: which of them, and how fast; None: all, as fast as they came.
        bodies: what stands in for bodies that were not kept.
        priority_header: in which field requests state their priority; lower case.
        decided: state the priority that the throttle decided on also where the recorded request stated
            none: right where the service under test cannot know what decided it then, such as a key.

    Raises:
        TrafficError: nothing is left to play, bodies are missing (it says how many), or the cut does not
            fit the recording.
    """
    chosen, fill = cut or Cut(), bodies or Fill()
    cast = _Cast(priority_header, decided=decided)
    times, missing = array("d"), Missing()
    for entry in entries:
        if not chosen.keeps(entry.t_s, entry.client, entry.id):
            continue
        body = fill.of(entry)
        if body is None:
            missing.add(entry)
            continue
        times.append(entry.t_s)
        cast.add(entry, body)
    missing.end()
    offsets = chosen.offsets(times)
    return Replay(cast.load(offsets, chosen.duration_s), cast.recorded, tuple(cast.notes()))


class _Cast:
    """Who says what: the columns of a plan, gathered for one loop."""

    def __init__(self, priority_header: str, *, decided: bool) -> None:
        self.recorded = Recorded()
        self._header = priority_header
        self._decided = decided
        self._kinds: dict[Request, int] = {}
        self._clients: dict[str, int] = {}
        self._masked = 0
        self._columns = (array("I"), array("I"), bytearray())

    def add(self, entry: Entry, body: bytes) -> None:
        """One more request."""
        priority, stated = self._priority(entry)
        request = Request(
            method=entry.method,
            target=entry.target,
            headers=tuple(pair for pair in entry.headers if pair[0] not in OF_THE_CONNECTION),
            body=body,
            priority=self._decided and not stated and entry.priority == priority.label,
        )
        kinds, clients, priorities = self._columns
        kinds.append(self._kinds.setdefault(request, len(self._kinds)))
        client = entry.client or f"{STRANGER}{len(clients)}"
        clients.append(self._clients.setdefault(client, len(self._clients)))
        self._masked += _is_masked(entry.target)
        priorities.append(priority)
        self.recorded.note(entry)

    def notes(self) -> Iterator[str]:
        """What people should know of it."""
        if self._masked:
            yield (
                f"{self._masked} requests have {MASK} where their path or query was masked, and are sent so: "
                "the service may answer otherwise than it did"
            )

    def load(self, offsets: array[float], duration_s: float | None) -> Load:
        """The load of all loops."""
        kinds, clients, priorities = self._columns
        count = len(offsets)
        loops = -(-count // len(kinds))
        plan = Plan(
            offsets=offsets,
            priorities=bytes(priorities * loops)[:count],
            segments=array("H", bytes(2 * count)),
            clients=(clients * loops)[:count],
            kinds=(kinds * loops)[:count],
            names=("replay",),
            ends_s=(offsets[-1] if duration_s is None else min(duration_s, offsets[-1]),),
        )
        return Load(plan, tuple(self._kinds), tuple(self._clients))

    def _priority(self, entry: Entry) -> tuple[Priority, bool]:
        """The priority it counts as, and whether the client stated one."""
        stated = next((value for name, value in entry.headers if name == self._header), None)
        for word in (entry.priority, stated or ""):
            if word.strip().upper() in Priority.__members__:
                return Priority[word.strip().upper()], stated is not None
        return UNSTATED, stated is not None


def _is_masked(target: str) -> bool:
    path, _, query = target.partition("?")
    if path != MASK and any(part == MASK or part.endswith(f";{MASK}") for part in path.split("/")):
        return True
    return any(part in (MASK, f"{MASK}={MASK}") for part in query.split("&"))
