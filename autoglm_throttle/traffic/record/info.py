"""Summary of a recording, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autoglm_throttle.traffic.record.heading import End, Heading
from autoglm_throttle.traffic.record.reading import Faults, open_recording


@dataclass(slots=True)
class Info:
    """Totals of a recording, without any single request."""

    heading: Heading
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
    end: End | None = None
    """Reason for the end; None where the last line is missing."""
    faults: Faults = field(default_factory=Faults)
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
        heading = self.heading
        yield f"began      {heading.start or 'not said'}, by version {heading.made_by or 'not said'}"
        yield f"requests   {self.entries} in {self.span_s:.1f} s: {self.rps:.2f}/s, at most {self.busiest}/s"
        yield f"clients    {self.clients}, of a sample of {heading.sample:g}"
        yield f"bodies     {self.bodies_bytes} bytes"
        for title, counts in (
            ("priority", self.priorities),
            ("decision", self.decisions),
            ("status", self.statuses),
        ):
            parts = ", ".join(f"{name or 'none'} {count}" for name, count in sorted(counts.items()))
            yield f"{title:10} {parts or 'none'}"
        for name, kept in heading.redaction.items():
            yield f"{'kept ' + _plain(name):10} {_plain(kept)}"
        if self.end is None:
            yield "end        missing: the recorder was killed, or records still"
        else:
            yield f"end        {self.end.reason or 'not said'}, {self.end.dropped} dropped"
        if self.faults.count:
            yield f"unreadable {self.faults.count} lines"
            yield from (f"  {fault}" for fault in self.faults)


def info(path: Path | str) -> Info:
    """Sum up a recording.

    Raises:
        TrafficError: it cannot be read, is no recording, or of another version.
    """
    recording = open_recording(path)
    found = Info(recording.heading)
    clients: set[str] = set()
    seconds: Counter[int] = Counter()
    for entry in recording.entries():
        if not found.entries:
            found.first_s = entry.t_s
        found.entries += 1
        found.last_s = entry.t_s
        found.bodies_bytes += entry.body_len
        clients.add(entry.client)
        seconds[int(entry.t_s)] += 1
        found.priorities[entry.priority] += 1
        found.decisions[f"{entry.decision} {entry.reason}".strip()] += 1
        found.statuses[entry.status] += 1
    found.clients = len(clients)
    found.busiest = max(seconds.values(), default=0)
    found.end, found.faults = recording.end, recording.faults
    return found


def _plain(value: object) -> str:
    """Format a value of the header in one line of printable ASCII."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text) or "none"
