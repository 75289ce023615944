"""Checks and sums up a recording. Findings never quote the file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from autoglm_throttle.settings.groups.observe import identifies_caller
from autoglm_throttle.traffic.record.recorded_request import (
    RecordedRequest,
    RecordingHeader,
    RecordingTrailer,
)
from autoglm_throttle.traffic.record.recording_reader import (
    MAX_PROBLEMS_SHOWN,
    RecordingProblems,
    open_recording,
)

_CLIENT = re.compile(r"(?:[0-9a-f]{16})?")

_FIRST_FIELDS: Final = frozenset({"v", "kind", "start", "library", "redaction", "sample"})
_LAST_FIELDS: Final = frozenset({"v", "end", "dropped"})
_REQUEST_FIELDS: Final = frozenset(
    {"v", "t", "id", "method", "target", "headers", "body_len", "body_sha256", "body_b64", "client"}
    | {"priority", "decision", "reason", "status", "ms", "ttfb_ms"}
)
_REDACTION: Final = frozenset({"headers", "query", "paths", "body", "key"})


@dataclass(slots=True)
class CheckResult:
    """Result of `check`."""

    entries: int = 0
    """Requests that were checked."""
    messages: list[str] = field(default_factory=list)
    """The first findings, each with its line and place, without the content."""
    count: int = 0
    """Total number of findings."""
    problem_kinds: Counter[str] = field(default_factory=Counter)
    """Number of findings of each kind."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.count

    def add(self, number: int, location: str, problem: str) -> None:
        """Record one finding."""
        self.count += 1
        self.problem_kinds[problem] += 1
        if len(self.messages) < MAX_PROBLEMS_SHOWN:
            self.messages.append(f"line {number}, {location}: {problem}")


def check(path: Path | str) -> CheckResult:
    """Check every line of a recording: format, order, and fields that a recorder never stores.

    Lines may be in order of arrival, as an import writes them, or of completion, as a recorder does. Contents
    are not searched for secrets: use a secret scanner before you share a file.

    Raises:
        TrafficError: it cannot be read, is no recording, or of another version.
    """
    recording = open_recording(path)
    result = CheckResult()
    if not recording.header.start:
        result.add(1, "first line", "does not state when the recording began")
    ids: set[int] = set()
    order = _LineOrder()
    for number, entry in recording.entries_in_file_order(partial(_check_format, result)):
        result.entries += 1
        if entry.id in ids:
            result.add(number, "id", "is that of an earlier line")
        ids.add(entry.id)
        order.observe(number, entry)
        for location, problem in _redaction_problems(entry):
            result.add(number, location, problem)
    for number in order.out_of_order():
        result.add(number, "t", "ended more than a second before the line above it")
    for unreadable in recording.problems.messages:
        result.count += 1
        result.problem_kinds["cannot be read"] += 1
        result.messages.append(unreadable)
    return result


class _LineOrder:
    """Detects whether lines are in order of arrival or of completion."""

    def __init__(self) -> None:
        self._arrived_s = 0.0
        self._ended_s = 0.0
        self._by_arrival = True
        self._late: list[int] = []

    def observe(self, number: int, entry: RecordedRequest) -> None:
        """Observe the times of a line."""
        end_s = entry.t_s + entry.ms / 1e3
        self._by_arrival = self._by_arrival and entry.t_s >= self._arrived_s
        if end_s < self._ended_s - 1.0:
            self._late.append(number)
        self._arrived_s, self._ended_s = entry.t_s, max(self._ended_s, end_s)

    def out_of_order(self) -> list[int]:
        """Return the lines that fit neither order."""
        return [] if self._by_arrival else self._late


def _check_format(result: CheckResult, number: int, line: bytes) -> None:
    """Report duplicate and unknown fields of a line."""
    try:
        data = json.loads(line, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError):
        return  # reported as unreadable
    if data is None:
        result.add(number, "line", "the same field twice")
    if not isinstance(data, dict):
        return
    first = number == 1 and "kind" in data
    last = "end" in data and "method" not in data
    known = _FIRST_FIELDS if first else _LAST_FIELDS if last else _REQUEST_FIELDS
    redaction = data.get("redaction", {}) if first else {}
    if data.keys() - known or (isinstance(redaction, dict) and redaction.keys() - _REDACTION):
        result.add(number, "line", "a field that no recording has")


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object] | None:
    data = dict(pairs)
    return data if len(data) == len(pairs) else None


def _redaction_problems(entry: RecordedRequest) -> Iterator[tuple[str, str]]:
    """Yield the parts of a request that a recorder never stores."""
    if not _CLIENT.fullmatch(entry.client):
        yield "client", "is no hash"
    for name, _ in entry.headers:
        if identifies_caller(name):
            yield "headers", f"{name} identifies the caller"


@dataclass(slots=True)
class Info:
    """Totals of a recording, without any single request."""

    header: RecordingHeader
    entries: int = 0
    """Requests."""
    first_s: float = 0.0
    """Arrival of the first, in seconds since the recording began."""
    last_s: float = 0.0
    """Arrival of the last."""
    busiest: int = 0
    """Highest number of requests that arrived within one whole second."""
    clients: int = 0
    """Number of distinct clients."""
    bodies_bytes: int = 0
    """Length of all request bodies."""
    decisions: Counter[str] = field(default_factory=Counter)
    """Requests by decision and reason; empty where no throttle decided."""
    priorities: Counter[str] = field(default_factory=Counter)
    """Requests by priority."""
    statuses: Counter[int] = field(default_factory=Counter)
    """Requests by status; 0: no response, or the client disconnected."""
    end: RecordingTrailer | None = None
    """Reason for the end; None where the last line is missing."""
    problems: RecordingProblems = field(default_factory=RecordingProblems)
    """Unreadable lines."""

    @property
    def span_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.last_s - self.first_s

    @property
    def rps(self) -> float:
        """Mean rate over the span, requests per second."""
        return (self.entries - 1) / self.span_s if self.span_s > 0 else 0.0

    def lines(self) -> list[str]:
        """Format for a terminal."""
        return list(self._lines())

    def _lines(self) -> Iterator[str]:
        header = self.header
        yield f"began      {header.start or 'not stated'}, by version {header.made_by or 'not stated'}"
        yield f"requests   {self.entries} in {self.span_s:.1f} s: {self.rps:.2f}/s, at most {self.busiest}/s"
        yield f"clients    {self.clients}, of a sample of {header.sample:g}"
        yield f"bodies     {self.bodies_bytes} bytes"
        for title, counts in (
            ("priority", self.priorities),
            ("decision", self.decisions),
            ("status", self.statuses),
        ):
            parts = ", ".join(f"{name or 'none'} {count}" for name, count in sorted(counts.items()))
            yield f"{title:10} {parts or 'none'}"
        for name, value in header.redaction.items():
            yield f"{'kept ' + _to_text(name):10} {_to_text(value)}"
        if self.end is None:
            yield "end        missing: the recorder was killed or is still recording"
        else:
            yield f"end        {self.end.reason or 'not stated'}, {self.end.dropped} dropped"
        if self.problems.count:
            yield f"unreadable {self.problems.count} lines"
            yield from (f"  {fault}" for fault in self.problems.messages)


def info(path: Path | str) -> Info:
    """Sum up a recording.

    Raises:
        TrafficError: it cannot be read, is no recording, or of another version.
    """
    recording = open_recording(path)
    totals = Info(recording.header)
    clients: set[str] = set()
    seconds: Counter[int] = Counter()
    for entry in recording.entries():
        if not totals.entries:
            totals.first_s = entry.t_s
        totals.entries += 1
        totals.last_s = entry.t_s
        totals.bodies_bytes += entry.body_len
        clients.add(entry.client)
        seconds[int(entry.t_s)] += 1
        totals.priorities[entry.priority] += 1
        totals.decisions[f"{entry.decision} {entry.reason}".strip()] += 1
        totals.statuses[entry.status] += 1
    totals.clients = len(clients)
    totals.busiest = max(seconds.values(), default=0)
    totals.end, totals.problems = recording.end, recording.problems
    return totals


def _to_text(value: object) -> str:
    """Format a value of the header in one line of printable ASCII."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text) or "none"
