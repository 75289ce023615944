"""Builds a load from a recording, a file of GoReplay, or a trace of LLM requests."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import LoadPlan, PriorityMix, make_replay_plan
from autoglm_throttle.traffic.record.recorded_request import RecordedRequest
from autoglm_throttle.traffic.record.redaction import MASK
from autoglm_throttle.traffic.replay.selection import Selection
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.sources import open_source, read_begin
from autoglm_throttle.traffic.trace import HEADER, Trace, load_azure_llm
from autoglm_throttle.types import Priority

# Priority where neither the throttle nor the client stated one: the default of ``PRIORITY_DEFAULT``.
UNSTATED = Priority.MID

CONNECTION_FIELDS = frozenset(  # Fields of a single connection: the sender writes its own
    {"connection", "content-length", "expect", "host", "keep-alive", "proxy-connection"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)

UNKNOWN_CLIENT = "unknown-"  # Prefix of the identity text of an unknown client; a number follows

# Most bytes of spaces for one body, like the limit for answers. A recorded length is not trusted.
FILLED_AT_MOST = 64 << 20

BODIES_AT_MOST = 1 << 30  # Bytes of all different bodies of a replay, which are held in memory

REJECTED_DECISIONS = ("limited", "shed", "degraded")  # Decisions after which the body was not read


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Properties of the requests that a file lacks; two replacements for bodies raise TrafficError."""

    body: bytes | None = None  # Sent where a body was not recorded
    fill: bool = False  # Whether to send spaces of the recorded length there
    priority_header: str = PRIORITY_HEADER  # Header field of the priority; lower case
    # Whether to send the priority decided by the throttle even if the recorded request stated none: right
    # if the service under test lacks the basis of that decision, such as a key.
    decided: bool = False
    mix: PriorityMix = field(default_factory=PriorityMix)  # Priorities and clients for a trace, without both
    seed: int = 0  # Seed of their draws
    target: str = "/v1/predict"  # Request path for a trace

    def __post_init__(self) -> None:
        if self.body is not None and self.fill:
            raise TrafficError("missing bodies are filled from a file or with spaces, not both")

    def body_of(self, entry: RecordedRequest) -> bytes | None:
        """Return the body to send; None if it was not recorded and has no replacement."""
        if entry.body is not None or not entry.body_len:
            return entry.body or b""
        if not self.fill:
            return self.body
        if entry.body_len > FILLED_AT_MOST:
            raise TrafficError(f"request {entry.id}: a body of {entry.body_len} bytes is not filled")
        return b" " * entry.body_len


class ReplayIndex:
    """The requests of one loop in columns: their plan and their recorded results, about 30 bytes for each."""

    def __init__(self) -> None:
        self.statuses: array[int] = array("H")
        self.degraded: bytearray = bytearray()  # 1: the throttle let a fallback respond
        self.ms: array[float] = array("f")  # Milliseconds from arrival to the end
        # Whether a throttle decided on any request; without one, fallbacks cannot be recognized.
        self.has_decisions: bool = False
        self.masked: int = 0  # Number of masked targets
        self._body_bytes = 0
        self._kinds: dict[PlannedRequest, int] = {}
        self._clients: dict[str, int] = {}
        self._columns = (array("I"), array("I"), bytearray())  # Kinds, clients and priorities

    def __len__(self) -> int:
        return len(self.statuses)

    def add(self, entry: RecordedRequest, body: bytes, options: ReplayOptions) -> None:
        """Append one request."""
        kinds, clients, priorities = self._columns
        stated = next((value for name, value in entry.headers if name == options.priority_header), None)
        names = (text.strip().upper() for text in (entry.priority, stated or ""))
        priority = next((Priority[name] for name in names if name in Priority.__members__), UNSTATED)
        request = PlannedRequest(
            method=entry.method,
            target=entry.target,
            headers=tuple(pair for pair in entry.headers if pair[0] not in CONNECTION_FIELDS),
            body=body,
            priority=options.decided and stated is None and entry.priority == priority.label,
        )
        if request not in self._kinds and body is not options.body:
            self._body_bytes += len(body)
            _check_bodies(self._body_bytes)
        kinds.append(self._kinds.setdefault(request, len(self._kinds)))
        client = entry.client or f"{UNKNOWN_CLIENT}{len(clients)}"
        clients.append(self._clients.setdefault(client, len(self._clients)))
        priorities.append(priority)
        self.masked += _is_masked(entry.target)
        self.statuses.append(entry.status)
        self.degraded.append(entry.decision == "degraded")
        self.ms.append(entry.ms)
        self.has_decisions = self.has_decisions or bool(entry.decision)

    def load(self, offsets: array[float], duration_s: float | None) -> RequestSource:
        """Build the load of all loops."""
        kinds, clients, priorities = self._columns
        count = len(offsets)
        loops = -(-count // len(kinds))
        plan = LoadPlan(
            offsets=offsets,
            priorities=bytes(priorities * loops)[:count],
            segments=array("H", bytes(2 * count)),
            clients=(clients * loops)[:count],
            kinds=(kinds * loops)[:count],
            names=("replay",),
            ends_s=(offsets[-1] if duration_s is None else min(duration_s, offsets[-1]),),
        )
        return RequestSource(plan, tuple(self._kinds), tuple(self._clients))


def _check_bodies(total_bytes: int) -> None:
    if total_bytes > BODIES_AT_MOST:
        raise TrafficError(f"its bodies have more than {BODIES_AT_MOST} bytes: replay a part of it")


def _is_masked(target: str) -> bool:
    path, _, query = target.partition("?")
    if path != MASK and any(part == MASK or part.endswith(f";{MASK}") for part in path.split("/")):
        return True
    return any(part in (MASK, f"{MASK}={MASK}") for part in query.split("&"))


@dataclass(frozen=True, slots=True)
class Replay:
    """A load built from a recording."""

    load: RequestSource
    # One loop of it: request ``n`` of the plan is number ``n % len(recorded)``; None for a trace.
    recorded: ReplayIndex | None
    notes: tuple[str, ...] = ()  # Messages on unreadable and skipped parts


def prepare(
    entries: Iterable[RecordedRequest],
    selection: Selection | None = None,
    options: ReplayOptions | None = None,
) -> Replay:
    """Build the load of a recording, whose entries come in order of time.

    Requests with equal contents share one kind, so memory holds each distinct request once. TrafficError is
    raised where nothing is left to replay, bodies are missing, or the selection does not fit.
    """
    selection, options = selection or Selection(), options or ReplayOptions()
    times, missing, recorded = array("d"), list[tuple[str, str]](), ReplayIndex()
    for entry in entries:
        if not selection.includes(entry.t_s, entry.client, entry.id):
            continue
        body = options.body_of(entry)
        if body is None:
            missing.append((entry.method, _missing_reason(entry)))
        else:
            times.append(entry.t_s)
            recorded.add(entry, body, options)
    _raise_if_missing(missing)
    load = recorded.load(selection.offsets(times), selection.duration_s)
    note = (
        f"{recorded.masked} requests have {MASK} where their path or query was masked, and are sent masked:"
        " the responses may differ from the recorded ones"
    )
    return Replay(load, recorded, (note,) if recorded.masked else ())


def _raise_if_missing(missing: Sequence[tuple[str, str]]) -> None:
    """Check that no body is missing; the error lists methods and reasons of those that are."""
    if not missing:
        return
    counts = Counter(method for method, _ in missing), Counter(reason for _, reason in missing)
    methods, reasons = (", ".join(f"{count} {word}" for word, count in sorted(one.items())) for one in counts)
    raise TrafficError(
        f"{len(missing)} requests have a body that was not recorded ({methods}; {reasons}):"
        " give one with --body FILE, or --fill for spaces of the same length"
    )


def _missing_reason(entry: RecordedRequest) -> str:
    if entry.body_sha256:
        return "as a hash only"
    if entry.decision in REJECTED_DECISIONS:
        return "rejected before the body was read"
    return "not recorded or not read to the end"


def open_replay(
    path: Path, selection: Selection | None = None, options: ReplayOptions | None = None
) -> Replay:
    """Build the load of a file of any known format; raise TrafficError if nothing of it can be replayed.

    Bodies of a file of GoReplay are sent whole; its fields pass the redaction of a recorder.
    """
    selection, options = selection or Selection(), options or ReplayOptions()
    if is_trace(path):
        trace = load_azure_llm(path)
        notes = (f"{trace.malformed} malformed lines were left out",) if trace.malformed else ()
        return Replay(of_trace(trace, selection, options), None, notes)
    source = open_source(path)
    entries = source.entries()
    if source.has_bodies:
        held, body_bytes = list[RecordedRequest](), 0
        for entry in entries:
            held.append(entry)
            body_bytes += len(entry.body or b"")
            _check_bodies(body_bytes)
        entries = iter(sorted(held, key=lambda entry: entry.t_s))
    made = prepare(entries, selection, options)
    return replace(made, notes=(*source.problem_lines(), *made.notes))


def of_trace(trace: Trace, selection: Selection, options: ReplayOptions) -> RequestSource:
    """Build the load of a part of a trace: its times, and its token counts as bodies.

    A trace has no callers and no priorities: both are drawn, again in each loop. One request has at least one
    generated token. The service must understand ``context_tokens`` and ``tokens``.
    """
    items = [item for number, item in enumerate(trace.items) if selection.includes(item.t_s, "", number)]
    offsets = selection.offsets([item.t_s for item in items])
    numbers: dict[tuple[int, int], int] = {}
    tokens = ((item.context_tokens, max(1, item.generated_tokens)) for item in items)
    kinds = array("I", (numbers.setdefault(pair, len(numbers)) for pair in tokens))
    kinds = (kinds * -(-len(offsets) // len(items)))[: len(offsets)]
    bodies = (json.dumps({"context_tokens": context, "tokens": generated}) for context, generated in numbers)
    requests = [PlannedRequest(target=options.target, body=body.encode()) for body in bodies]
    made = make_replay_plan(offsets, options.mix, seed=options.seed)
    return RequestSource(replace(made, kinds=kinds), requests)


def times_of(path: Path) -> array[float]:
    """Return the arrival times of a file for ``trace:PATH``, in seconds; raise TrafficError without any."""
    if is_trace(path):
        return array("d", (item.t_s for item in load_azure_llm(path).items))
    times_s = sorted(entry.t_s for entry in open_source(path).entries())
    if not times_s:
        raise TrafficError(f"{path}: no request in it")
    return array("d", (t_s - times_s[0] for t_s in times_s))


def is_trace(path: Path) -> bool:
    """Return whether a file begins with the header line of a trace of LLM requests."""
    line = read_begin(path).removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    return line.strip().replace(b" ", b"") == HEADER.encode()
