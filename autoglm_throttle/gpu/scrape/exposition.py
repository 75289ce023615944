"""Parses the text formats of exporters and engines: Prometheus text 0.0.4 and OpenMetrics 1.0.

Label values hold commas, blanks, braces, quotes and escaped line feeds: they are read by a tokenizer and
never split. One invalid line, or a truncated text, makes the whole invalid: ``9`` may be the beginning of
``95``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_LINE: Final = re.compile(  # Name, labels, value, time, exemplar. Possessive, so that no text makes it slow.
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)"
    r'(?:[ \t]*\{((?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+)\}[ \t]*|[ \t]+)'
    r"([^ \t#]+)"
    r"(?:[ \t]+([0-9eE+.-]+))?"
    r"[ \t]*(#.*)?",
    re.DOTALL,
)

_LABEL: Final = re.compile(
    r'[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*=[ \t]*"((?:[^"\\]++|\\.)*+)"[ \t]*(?:,|\Z)', re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED: Final = {"n": "\n", '"': '"', "\\": "\\"}
# Maximum lines of a text. An engine has five thousand; the 2 million of 8 MiB would take 4 s and 360 MB.
MOST_LINES: Final = 100_000
_EOF: Final = "# EOF"
_CHARACTERS_SHOWN: Final = 60


class MalformedExpositionError(ValueError):
    """The text has neither of the two formats; the message says where."""


class Series(NamedTuple):
    """One line."""

    name: str
    labels: Mapping[str, str]  # Shared by all lines with the same labels; do not modify
    value: float  # May be NaN or infinite: the formats allow it
    at_s: float | None = None  # Unix time that the source reports for the value; few do


def parse(text: str, *, openmetrics: bool = False) -> list[Series]:
    """Parse a whole text into a series for each line; OpenMetrics counts seconds, not milliseconds."""
    if text.count("\n") > MOST_LINES:
        raise MalformedExpositionError(f"it has more than {MOST_LINES} lines")
    # Never splitlines(): label values may hold what Python takes for the end of a line.
    lines = (text.removesuffix("\n") if openmetrics else text).split("\n")
    last = lines.pop()
    if openmetrics and last != _EOF:
        raise MalformedExpositionError(f"it does not end with {_EOF}")
    if last and not openmetrics:
        raise MalformedExpositionError("it ends in the middle of a line")
    label_cache: dict[str, Mapping[str, str]] = {}
    series = []
    for number, line in enumerate(lines, 1):
        bare = line.strip(" \t")
        if not bare or bare[0] == "#":
            continue
        try:
            series.append(_series(bare, label_cache, openmetrics=openmetrics))
        except (ValueError, OverflowError):
            text = f"line {number} is no series: {bare[:_CHARACTERS_SHOWN]!a}"
            raise MalformedExpositionError(text) from None
    return series


def _series(line: str, label_cache: dict[str, Mapping[str, str]], *, openmetrics: bool) -> Series:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError
    name, body, value, time, exemplar = match.groups()
    if exemplar and not openmetrics:
        raise ValueError
    # Parse equal label sets once: an exporter repeats them on every metric of a device.
    body = body or ""
    labels = label_cache.get(body) or label_cache.setdefault(body, _labels(body))
    at_s = None if time is None else _number(time) if openmetrics else int(time) / 1000.0
    return Series(name, labels, _number(value), at_s)


def _labels(body: str) -> Mapping[str, str]:
    body = body.strip(" \t")
    labels, at = dict[str, str](), 0
    while at < len(body):
        match = _LABEL.match(body, at)
        if match is None or match[1] in labels:
            raise ValueError
        labels[match[1]] = _unescaped(match[2])
        at = match.end()
    return labels


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _UNESCAPED.get(found[1], found[0]), text)


def _number(text: str) -> float:
    # Python reads 1_000 and digits of other scripts; the formats do not.
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)
