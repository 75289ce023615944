"""Scans a recording for secrets. Findings are named by place and kind, and never quoted."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import unquote_plus

from autoglm_throttle.settings.groups.recorder import identifies_caller
from autoglm_throttle.traffic.record.recorded_request import RecordedRequest
from autoglm_throttle.traffic.record.recording_reader import MAX_PROBLEMS_SHOWN, open_recording

RANDOM_AT_LEAST: Final = 20
"""Shortest word that is tested for randomness; 20 characters of base 62 are 119 bits, and keys are longer."""

BITS_AT_LEAST: Final = 3.0
"""Lowest Shannon entropy per character of such a word: random hex digits have 3.5 at 32 characters."""

CHANGES_AT_LEAST: Final = 0.25
"""Lowest share of neighbors of different kinds: lower case, capital, digit.

It is 0.62 in base 62 and 0.47 in hex digits on average; ordinary identifiers with a number have less.
"""

_KNOWN: Final = {
    "a bearer token": re.compile(r"\bbearer\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
    "basic credentials": re.compile(r"\bbasic\s+[A-Za-z0-9+/]{8,}=*", re.IGNORECASE),
    "a JSON web token": re.compile(r"\beyJ[A-Za-z0-9_-]{8,2000}\.[A-Za-z0-9_-]{4,}"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    "a key with a known prefix": re.compile(
        r"\b(?:sk-|sk_live_|rk_live_|gh[pousr]_|github_pat_|xox[abprs]-|hf_|glpat-|AKIA|AIza)[A-Za-z0-9_-]{8,}"
    ),
    "a password in a URL": re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^/\s:@]{0,200}:[^/\s@]{1,200}@"),
}
_NAMES = (
    r"(?:[\w.-]{0,40}(?:passw(?:or)?d|passphrase|pwd|secret|api[_-]?key|(?:access|private)[_-]?key|credentials?)"
    r"|(?:[\w.-]{0,40}(?:access|refresh|id|auth|session|csrf|xsrf|api|bearer|security)[_-]?)?token"
    r"|sid|[\w.-]{0,20}sess(?:ion)?(?:[_-]?id|[_-]?key)?|auth|jwt|[\w.-]{0,20}cookie|authorization"
    r"|[\w.-]{0,20}signature|sig)"
)
"""Names that denote a secret; ``max_tokens`` is not one."""

_SECRET_KEY = re.compile(
    rf"(?:\A|[\"'&?#;{{(,\s\[]){_NAMES}[\]\"']*\s*[:=]\s*[\"']?(?!\*)[^\s\"'&;,}}]", re.IGNORECASE
)
_PART_OF_FORM = re.compile(rf"\bname=[\"']?{_NAMES}[\"']?\s*(?:;|[\r\n]|\Z)", re.IGNORECASE)
_WORD = re.compile(rf"[A-Za-z0-9_+=-]{{{RANDOM_AT_LEAST},}}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PERSONAL = re.compile(r"[A-Za-z0-9_.+-]{1,64}(?:@|%40)[A-Za-z0-9-]{1,63}\.[A-Za-z]{2,}")
_IDENTITY = re.compile(r"(?:[0-9a-f]{16})?")

_FIELD_NAMES: Final = (
    frozenset({"v", "kind", "start", "library", "redaction", "sample"}),
    frozenset({"v", "end", "dropped"}),
    frozenset(
        {"v", "t", "id", "method", "target", "headers", "body_len", "body_sha256", "body_b64", "client"}
        | {"priority", "decision", "reason", "status", "ms", "ttfb_ms"}
    ),
)
"""Field names of a first line, a last line, and any other."""

_REDACTION: Final = frozenset({"headers", "query", "paths", "body", "key"})

MAX_UNPACKED_BYTES: Final = 1024 * 1024
"""Bytes of a compressed body that are scanned."""


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

    def add_unreadable(self, faults: Iterable[str]) -> None:
        """Record lines that could not be read."""
        for fault in faults:
            self.count += 1
            self.problem_kinds["cannot be read"] += 1
            self.messages.append(fault)


def check(path: Path | str) -> CheckResult:
    """Check every line of a recording: format, order and possible secrets.

    Lines may be in order of arrival, as converters write them, or of completion, as a recorder does.
    UUIDs count as identifiers, not as secrets.

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
        for location, problem in _secrets(entry):
            result.add(number, location, problem)
    for number in order.out_of_order():
        result.add(number, "t", "ended more than a second before the line above it")
    result.add_unreadable(recording.problems)
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
    for location, problem in _format_problems(number, line):
        result.add(number, location, problem)


def _format_problems(number: int, line: bytes) -> Iterator[tuple[str, str]]:
    """Yield unknown fields, and possible secrets in a first or last line."""
    try:
        data = json.loads(line, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError):
        return  # reported as unreadable
    if data is None:
        yield "line", "the same field twice"
    if not isinstance(data, dict):
        return
    first, last = number == 1 and "kind" in data, "end" in data and "method" not in data
    named = _FIELD_NAMES[0] if first else _FIELD_NAMES[1] if last else _FIELD_NAMES[2]
    redaction = data.get("redaction", {}) if first else {}
    if data.keys() - named or (isinstance(redaction, dict) and redaction.keys() - _REDACTION):
        yield "line", "a field that no recording has"
    if first or last:
        text = json.dumps(data, ensure_ascii=False)
        yield from (("line", problem) for problem in _known_secrets(text))
        if _has_random_word(text):
            yield "line", "a long random string"


def _reject_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object] | None:
    data = dict(pairs)
    return data if len(data) == len(pairs) else None


def _secrets(entry: RecordedRequest) -> Iterator[tuple[str, str]]:
    """Yield place and kind of each possible secret in a request."""
    if not _IDENTITY.fullmatch(entry.client):
        yield "client", "is no hash"
    for name, _ in entry.headers:
        if identifies_caller(name):
            yield "headers", f"{name} identifies the caller"
    locations = [("target", _decoded(entry.target)), *(("headers", value) for _, value in entry.headers)]
    locations += [("priority, decision or reason", f"{entry.priority} {entry.decision} {entry.reason}")]
    for location, text in locations:
        yield from ((location, problem) for problem in _known_secrets(text))
        yield from (
            (location, problem)
            for problem in _suspected_secrets(text, "a parameter with the name of a secret")
        )
    if entry.body:
        text = _unpacked(entry.body).decode("utf-8", "replace").replace("\0", "")  # UTF-16, too
        both = f"{text}\n{_decoded(text)}" if "%" in text else text
        yield from (("body", problem) for problem in _known_secrets(both))
        yield from (
            ("body", problem) for problem in _suspected_secrets(both, "a field with the name of a secret")
        )


def _decoded(text: str) -> str:
    """Decode a text that was URL-encoded once or twice."""
    return unquote_plus(unquote_plus(text))


def _unpacked(body: bytes) -> bytes:
    """Return a body, decompressed if it is compressed."""
    if not body.startswith((b"\x1f\x8b", b"\x78")):
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, MAX_UNPACKED_BYTES)
    except zlib.error:
        return body


def _known_secrets(text: str) -> Iterator[str]:
    for problem, pattern in _KNOWN.items():
        if pattern.search(text):
            yield problem


def _suspected_secrets(text: str, named: str) -> Iterator[str]:
    if _SECRET_KEY.search(text) or _PART_OF_FORM.search(text):
        yield named
    if _PERSONAL.search(text):
        yield "an e-mail address"
    if _has_random_word(text):
        yield "a long random string"


def _has_random_word(text: str) -> bool:
    return any(map(_random, _WORD.findall(_UUID.sub("", text))))


def _random(word: str) -> bool:
    """Return whether a long word looks random: letters and digits without a pattern."""
    sorts = "".join(
        "d" if letter.isdigit() else "u" if letter.isupper() else "l" for letter in word if letter.isalnum()
    )
    if "d" not in sorts or not sorts.strip("d"):
        return False
    changes = sum(before != after for before, after in pairwise(sorts)) / (len(sorts) - 1)
    shares = [count / len(word) for count in Counter(word).values()]
    bits = -sum(share * math.log2(share) for share in shares)
    return changes >= CHANGES_AT_LEAST and bits >= BITS_AT_LEAST
