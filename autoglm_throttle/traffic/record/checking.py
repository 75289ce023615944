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

from autoglm_throttle.settings.record_fields import identifies_caller
from autoglm_throttle.traffic.record.entry import Entry
from autoglm_throttle.traffic.record.reading import FAULTS_SHOWN, open_recording

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

_LINES: Final = (
    frozenset({"v", "kind", "start", "library", "redaction", "sample"}),
    frozenset({"v", "end", "dropped"}),
    frozenset(
        {"v", "t", "id", "method", "target", "headers", "body_len", "body_sha256", "body_b64", "client"}
        | {"priority", "decision", "reason", "status", "ms", "ttfb_ms"}
    ),
)
"""Field names of a first line, a last line, and any other."""

_REDACTION: Final = frozenset({"headers", "query", "paths", "body", "key"})

UNPACKED_AT_MOST: Final = 1024 * 1024
"""Bytes of a compressed body that are scanned."""


@dataclass(slots=True)
class Findings:
    """Result of `check`."""

    entries: int = 0
    """Requests that were checked."""
    told: list[str] = field(default_factory=list)
    """The first findings, each with its line and place, without the content."""
    count: int = 0
    """Total number of findings."""
    sorts: Counter[str] = field(default_factory=Counter)
    """Number of findings of each kind."""

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.count

    def add(self, number: int, place: str, what: str) -> None:
        """Record one finding."""
        self.count += 1
        self.sorts[what] += 1
        if len(self.told) < FAULTS_SHOWN:
            self.told.append(f"line {number}, {place}: {what}")

    def unread(self, faults: Iterable[str]) -> None:
        """Record lines that could not be read."""
        for fault in faults:
            self.count += 1
            self.sorts["cannot be read"] += 1
            self.told.append(fault)


def check(path: Path | str) -> Findings:
    """Check every line of a recording: format, order and possible secrets.

    Lines may be in order of arrival, as converters write them, or of completion, as a recorder does.
    UUIDs count as identifiers, not as secrets.

    Raises:
        TrafficError: it cannot be read, is no recording, or of another version.
    """
    recording = open_recording(path)
    found = Findings()
    if not recording.heading.start:
        found.add(1, "first line", "says nothing of when the recording began")
    seen: set[int] = set()
    order = _Order()
    for number, entry in recording.written(partial(_look_at_form, found)):
        found.entries += 1
        if entry.id in seen:
            found.add(number, "id", "is that of an earlier line")
        seen.add(entry.id)
        order.see(number, entry)
        for place, what in _secrets(entry):
            found.add(number, place, what)
    for number in order.wrong():
        found.add(number, "t", "ended more than a second before the line above it")
    found.unread(recording.faults)
    return found


class _Order:
    """Detects whether lines are in order of arrival or of completion."""

    def __init__(self) -> None:
        self._arrived_s = 0.0
        self._ended_s = 0.0
        self._by_arrival = True
        self._late: list[int] = []

    def see(self, number: int, entry: Entry) -> None:
        """Observe the times of a line."""
        end_s = entry.t_s + entry.ms / 1e3
        self._by_arrival = self._by_arrival and entry.t_s >= self._arrived_s
        if end_s < self._ended_s - 1.0:
            self._late.append(number)
        self._arrived_s, self._ended_s = entry.t_s, max(self._ended_s, end_s)

    def wrong(self) -> list[int]:
        """Return the lines that fit neither order."""
        return [] if self._by_arrival else self._late


def _look_at_form(found: Findings, number: int, line: bytes) -> None:
    for place, what in _form(number, line):
        found.add(number, place, what)


def _form(number: int, line: bytes) -> Iterator[tuple[str, str]]:
    """Yield unknown fields, and possible secrets in a first or last line."""
    try:
        found = json.loads(line, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return  # reported as unreadable
    if found is None:
        yield "line", "the same field twice"
    if not isinstance(found, dict):
        return
    first, last = number == 1 and "kind" in found, "end" in found and "method" not in found
    named = _LINES[0] if first else _LINES[1] if last else _LINES[2]
    redaction = found.get("redaction", {}) if first else {}
    if found.keys() - named or (isinstance(redaction, dict) and redaction.keys() - _REDACTION):
        yield "line", "a field that no recording has"
    if first or last:
        text = json.dumps(found, ensure_ascii=False)
        yield from (("line", what) for what in _known(text))
        if _drawn(text):
            yield "line", "a long random string"


def _once(pairs: list[tuple[str, object]]) -> dict[str, object] | None:
    found = dict(pairs)
    return found if len(found) == len(pairs) else None


def _secrets(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield place and kind of each possible secret in a request."""
    if not _IDENTITY.fullmatch(entry.client):
        yield "client", "is no hash"
    for name, _ in entry.headers:
        if identifies_caller(name):
            yield "headers", f"{name} says who asks"
    places = [("target", _decoded(entry.target)), *(("headers", value) for _, value in entry.headers)]
    places += [("priority, decision or reason", f"{entry.priority} {entry.decision} {entry.reason}")]
    for place, text in places:
        yield from ((place, what) for what in _known(text))
        yield from ((place, what) for what in _guessed(text, "a parameter with the name of a secret"))
    if entry.body:
        text = _unpacked(entry.body).decode("utf-8", "replace").replace("\0", "")  # UTF-16, too
        both = f"{text}\n{_decoded(text)}" if "%" in text else text
        yield from (("body", what) for what in _known(both))
        yield from (("body", what) for what in _guessed(both, "a field with the name of a secret"))


def _decoded(text: str) -> str:
    """Decode a text that was URL-encoded once or twice."""
    return unquote_plus(unquote_plus(text))


def _unpacked(body: bytes) -> bytes:
    """Return a body, decompressed if it is compressed."""
    if not body.startswith((b"\x1f\x8b", b"\x78")):
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, UNPACKED_AT_MOST)
    except zlib.error:
        return body


def _known(text: str) -> Iterator[str]:
    for what, pattern in _KNOWN.items():
        if pattern.search(text):
            yield what


def _guessed(text: str, named: str) -> Iterator[str]:
    if _SECRET_KEY.search(text) or _PART_OF_FORM.search(text):
        yield named
    if _PERSONAL.search(text):
        yield "an e-mail address"
    if _drawn(text):
        yield "a long random string"


def _drawn(text: str) -> bool:
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
