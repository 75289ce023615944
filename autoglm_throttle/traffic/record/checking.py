"""Looks through a recording for what must not be in it. What it finds it names, and never shows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import unquote_plus

from autoglm_throttle.settings.record_fields import NEVER_RECORDED
from autoglm_throttle.traffic.record.entry import Entry
from autoglm_throttle.traffic.record.reading import FAULTS_SHOWN, open_recording

RANDOM_AT_LEAST: Final = 20
"""Characters of a word that looks drawn at random; 20 of base 62 are 119 bits, and keys are longer."""

BITS_AT_LEAST: Final = 3.0
"""Shannon entropy per character of such a word: random hex digits have 3.5 at 32 characters."""

CHANGES_AT_LEAST: Final = 0.25
"""Share of its neighbours that are of different sorts (small, capital, digit): 0.62 in base 62 and 0.47 in
hex digits on average; names of things with a number in them have less."""

_KNOWN: Final = {
    "a bearer token": re.compile(r"\bbearer\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE),
    "basic credentials": re.compile(r"\bbasic\s+[A-Za-z0-9+/]{8,}=*", re.IGNORECASE),
    "a JSON web token": re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    "a key with a known prefix": re.compile(
        r"\b(?:sk-|sk_live_|rk_live_|gh[pousr]_|github_pat_|xox[abprs]-|hf_|glpat-|AKIA|AIza)[A-Za-z0-9_-]{8,}"
    ),
    "a password in a URL": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@"),
}
_SECRET_KEY = re.compile(
    r"[\"'&?;{,\s](password|passwd|secret|api_?key|access_?token|refresh_?token|client_secret|cookie"
    r"|authorization)[\"']?\s*[:=]\s*[\"']?(?!\*)[^\s\"'&;,}]",
    re.IGNORECASE,
)
_WORD = re.compile(rf"[A-Za-z0-9_+=-]{{{RANDOM_AT_LEAST},}}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_PERSONAL = re.compile(r"[A-Za-z0-9_.+-]+(?:@|%40)[A-Za-z0-9-]+\.[A-Za-z]{2,}")
_IDENTITY = re.compile(r"(?:[0-9a-f]{16})?")


@dataclass(slots=True)
class Findings:
    """What `check` has found."""

    entries: int = 0
    """Requests that were looked at."""
    told: list[str] = field(default_factory=list)
    """The first findings, each with its line and place, without what stands there."""
    count: int = 0
    """All of them."""
    sorts: Counter[str] = field(default_factory=Counter)
    """How often each sort was found."""

    @property
    def clean(self) -> bool:
        """Whether there is none."""
        return not self.count

    def add(self, number: int, place: str, what: str) -> None:
        """Note one."""
        self.count += 1
        self.sorts[what] += 1
        if len(self.told) < FAULTS_SHOWN:
            self.told.append(f"line {number}, {place}: {what}")


def check(path: Path | str) -> Findings:
    """Look at every line of a recording: form, order, and what looks like a secret.

    UUIDs are taken for names of things, not for secrets.

    Raises:
        TrafficError: it cannot be read, is no recording, or of another version.
    """
    recording = open_recording(path)
    found = Findings()
    if not recording.heading.start:
        found.add(1, "first line", "says nothing of when the recording began")
    seen: set[int] = set()
    ended_s = 0.0
    for number, entry in recording.written():
        found.entries += 1
        if entry.id in seen:
            found.add(number, "id", "is that of an earlier line")
        seen.add(entry.id)
        end_s = entry.t_s + entry.ms / 1e3
        if end_s < ended_s - 1.0:
            found.add(number, "t", "ended more than a second before the line above it")
        ended_s = max(ended_s, end_s)
        for place, what in _secrets(entry):
            found.add(number, place, what)
    for fault in recording.faults:
        found.count += 1
        found.sorts["cannot be read"] += 1
        found.told.append(fault)
    return found


def _secrets(entry: Entry) -> Iterator[tuple[str, str]]:
    """Place and sort of everything in an entry that looks like a secret."""
    if not _IDENTITY.fullmatch(entry.client):
        yield "client", "is no hash"
    for name, _ in entry.headers:
        if name in NEVER_RECORDED:
            yield "headers", f"{name} says who asks"
    places = [("target", unquote_plus(entry.target)), *(("headers", value) for _, value in entry.headers)]
    places += [("priority, decision or reason", f"{entry.priority} {entry.decision} {entry.reason}")]
    for place, text in places:
        yield from ((place, what) for what in _known(text))
        yield from ((place, what) for what in _guessed(text))
    if entry.body is not None:
        text = entry.body.decode("utf-8", "replace")
        yield from (("body", what) for what in _known(text))
        if _SECRET_KEY.search(" " + text):
            yield "body", "a field with the name of a secret"


def _known(text: str) -> Iterator[str]:
    for what, pattern in _KNOWN.items():
        if pattern.search(text):
            yield what


def _guessed(text: str) -> Iterator[str]:
    if _SECRET_KEY.search(text):
        yield "a parameter with the name of a secret"
    if _PERSONAL.search(text):
        yield "an e-mail address"
    if any(map(_random, _WORD.findall(_UUID.sub("", text)))):
        yield "a long random string"


def _random(word: str) -> bool:
    """Whether a long word looks drawn: letters and digits in no order."""
    sorts = "".join(
        "d" if letter.isdigit() else "u" if letter.isupper() else "l" for letter in word if letter.isalnum()
    )
    if "d" not in sorts or not sorts.strip("d"):
        return False
    changes = sum(before != after for before, after in pairwise(sorts)) / (len(sorts) - 1)
    shares = [count / len(word) for count in Counter(word).values()]
    bits = -sum(share * math.log2(share) for share in shares)
    return changes >= CHANGES_AT_LEAST and bits >= BITS_AT_LEAST
