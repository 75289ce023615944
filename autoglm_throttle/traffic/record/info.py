"""Summary of a recording, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autoglm_throttle.traffic.record.recording_header import RecordingHeader, RecordingTrailer
from autoglm_throttle.traffic.record.recording_reader import RecordingProblems, open_recording


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
            yield from (f"  {fault}" for fault in self.problems)


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
