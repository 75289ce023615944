"""Checks and sums up a recording. Findings never quote the file."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.settings.groups.observe import identifies_caller
from autoglm_throttle.traffic.record.recorded_request import (
    FIELD_TYPES,
    RecordedRequest,
    RecordingHeader,
    RecordingTrailer,
)
from autoglm_throttle.traffic.record.recording_reader import RecordingProblems, open_recording

_CLIENT = re.compile(r"(?:[0-9a-f]{16})?")

_FIRST_FIELDS: Final = frozenset(json.loads(RecordingHeader().to_line()))
_LAST_FIELDS: Final = frozenset(json.loads(RecordingTrailer("", 0).to_line()))
_REQUEST_FIELDS: Final = frozenset({"v", "headers", "body_b64", *FIELD_TYPES})
_REDACTION: Final = frozenset({"headers", "query", "paths", "body", "key"})


def check(path: Path | str) -> tuple[int, RecordingProblems]:
    """Check every line of a recording: format, order, and fields that a recorder never stores.

    Lines may be in order of arrival, as an import writes them, or of completion, as a recorder does. Contents
    are not searched for secrets: use a secret scanner before you share a file.

    Returns:
        The number of requests, and the problems found. Raises as `open_recording`.
    """
    recording = open_recording(path)
    ids: set[int] = set()
    count, arrived_s, ended_s = 0, 0.0, 0.0
    is_by_arrival, late_lines = True, list[int]()
    for number, line, entry in recording.lines():
        findings = list(_format_problems(number, line))
        if entry is not None:
            count += 1
            findings += _request_problems(entry, ids)
            end_s = entry.t_s + entry.ms / 1e3
            is_by_arrival = is_by_arrival and entry.t_s >= arrived_s
            if end_s < ended_s - 1.0:
                late_lines.append(number)
            arrived_s, ended_s = entry.t_s, max(ended_s, end_s)
        for place, problem in findings:
            recording.problems.add(f"line {number}, {place}", problem, problem)
    late = "ended more than a second before the line above it"
    for number in [] if is_by_arrival else late_lines:
        recording.problems.add(f"line {number}, t", late, late)
    if not recording.header.start:
        problem = "does not state when the recording began"
        recording.problems.add("line 1, first line", problem, problem)
    return count, recording.problems


def _format_problems(number: int, line: bytes) -> Iterator[tuple[str, str]]:
    """Yield duplicate and unknown fields of a line."""
    try:
        data = json.loads(line, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError):
        return  # reported as unreadable
    if data is None:
        yield "line", "the same field twice"
    if not isinstance(data, dict):
        return
    first = number == 1 and "kind" in data
    last = "end" in data and "method" not in data
    known = _FIRST_FIELDS if first else _LAST_FIELDS if last else _REQUEST_FIELDS
    redaction = data.get("redaction", {}) if first else {}
    if data.keys() - known or (isinstance(redaction, dict) and redaction.keys() - _REDACTION):
        yield "line", "a field that no recording has"


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object] | None:
    data = dict(pairs)
    return data if len(data) == len(pairs) else None


def _request_problems(entry: RecordedRequest, ids: set[int]) -> Iterator[tuple[str, str]]:
    """Yield a repeated number, and the parts of a request that a recorder never stores."""
    if entry.id in ids:
        yield "id", "is that of an earlier line"
    ids.add(entry.id)
    if not _CLIENT.fullmatch(entry.client):
        yield "client", "is no hash"
    for name, _ in entry.headers:
        if identifies_caller(name):
            yield "headers", f"{name} identifies the caller"


def info(path: Path | str) -> dict[str, Any]:
    """Sum up a recording, without any single request.

    Returns:
        Ready for JSON. ``first_s`` is the first arrival in seconds since the start, ``span_s`` the time from
        it to the last, ``rps`` the mean rate over the span, ``busiest`` the most arrivals within one whole
        second. ``priorities``, ``decisions`` and ``statuses`` are counts; ``end`` is None where the last
        line is missing; ``faults`` are the unreadable lines. Raises as `open_recording`.
    """
    recording = open_recording(path)
    requests, bodies_bytes, times = 0, 0, list[float]()
    clients: set[str] = set()
    seconds: Counter[int] = Counter()
    priorities, decisions, statuses = Counter[str](), Counter[str](), Counter[str]()
    for entry in recording.entries():
        requests += 1
        bodies_bytes += entry.body_len
        times[1:] = [entry.t_s]  # the first and the last
        clients.add(entry.client)
        seconds[int(entry.t_s)] += 1
        priorities[entry.priority] += 1
        decisions[f"{entry.decision} {entry.reason}".strip()] += 1
        statuses[str(entry.status)] += 1
    header, end, problems = recording.header, recording.end, recording.problems
    span_s = times[-1] - times[0] if times else 0.0
    return {
        "start": header.start,
        "library": header.made_by,
        "sample": header.sample,
        "redaction": dict(header.redaction),
        "requests": requests,
        "first_s": times[0] if times else 0.0,
        "span_s": span_s,
        "rps": (requests - 1) / span_s if span_s > 0 else 0.0,
        "busiest": max(seconds.values(), default=0),
        "clients": len(clients),
        "bodies_bytes": bodies_bytes,
        "priorities": dict(priorities),
        "decisions": dict(decisions),
        "statuses": dict(statuses),
        "end": None if end is None else {"reason": end.reason, "dropped": end.dropped},
        "faults": {"count": problems.count, "messages": problems.messages},
    }


def info_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Format the result of `info` for a terminal."""
    yield f"began      {found['start'] or 'not stated'}, by version {found['library'] or 'not stated'}"
    rate = f"{found['rps']:.2f}/s, at most {found['busiest']}/s"
    yield f"requests   {found['requests']} in {found['span_s']:.1f} s: {rate}"
    yield f"clients    {found['clients']}, of a sample of {found['sample']:g}"
    yield f"bodies     {found['bodies_bytes']} bytes"
    for title, key in (("priority", "priorities"), ("decision", "decisions"), ("status", "statuses")):
        named = {"none" if name in ("", "0") else name: count for name, count in sorted(found[key].items())}
        parts = ", ".join(f"{name} {count}" for name, count in named.items())
        yield f"{title:10} {parts or 'none'}"
    for name, value in found["redaction"].items():
        yield f"{'kept ' + _to_text(name):10} {_to_text(value)}"
    end, faults = found["end"], found["faults"]
    if end is None:
        yield "end        missing: the recorder was killed or is still recording"
    else:
        yield f"end        {end['reason'] or 'not stated'}, {end['dropped']} dropped"
    if faults["count"]:
        yield f"unreadable {faults['count']} lines"
        yield from (f"  {fault}" for fault in faults["messages"])


def _to_text(value: object) -> str:
    """Format a value of the header in one line of printable ASCII."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text) or "none"
