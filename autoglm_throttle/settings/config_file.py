"""Reads the TOML of ``CONFIG_FILE``: ``[[routes]]``, ``[plans.<name>]``, ``[guards.<name>]`` and settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoglm_throttle.settings.problems import quoted_key

BYTES_AT_MOST = 1 << 20
"""A policy of a thousand routes needs a tenth of it; a wrong path may be a log of gigabytes."""

_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\[\[?\s*({_PATH})\s*\]")
_KEY = re.compile(rf"({_PATH})\s*=")


@dataclass(frozen=True)
class ConfigFile:
    """A parsed file with the lines of its keys."""

    path: Path
    values: dict[str, Any]
    lines: dict[str, int]
    """Place, such as ``rate_high_rps``, ``routes[1]`` or ``plans.gold``, -> line, from 1."""

    def place(self, key: str) -> str:
        """Format file, line (if it is known) and key: ``throttle.toml:12: routes[1].pattern``."""
        parents = [
            place for place in self.lines if key == place or key.startswith((f"{place}.", f"{place}["))
        ]
        line = self.lines[max(parents, key=len)] if parents else None
        return f"{self.path.name}:{line}: {key}" if line else f"{self.path.name}: {key}"


def read_config_file(path: Path) -> ConfigFile:
    """Read and parse the file.

    Raises:
        ValueError: the file cannot be read, is too long, or is not TOML; the text names the reason.
    """
    try:
        with path.open("rb") as file:
            # One byte more than allowed shows that the file is too long, without reading all of it.
            data = file.read(BYTES_AT_MOST + 1)
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None
    if len(data) > BYTES_AT_MOST:
        raise ValueError(f"longer than {BYTES_AT_MOST} bytes")
    try:
        text = data.decode("utf-8")
        values = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    return ConfigFile(path, values, _lines(text))


def _lines(text: str) -> dict[str, int]:
    """Find the lines where tables and keys begin."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    # tomllib reports no lines; text inside a long string may be taken for a key.
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        header = _HEADER.match(stripped)
        key = _KEY.match(stripped)
        if header:
            table = _record_line(lines, "", header[1], number)
            if stripped.startswith("[["):
                position = counts.get(table, 0)
                counts[table] = position + 1
                table = f"{table}[{position}]"
                lines.setdefault(table, number)
        elif key:
            _record_line(lines, table, key[1], number)
    return lines


def _record_line(lines: dict[str, int], table: str, path: str, number: int) -> str:
    """Record the line of each table on the path to a key, unless it began before; return the key's place."""
    place = table
    for part in re.findall(_PART, path):
        place = f"{place}.{_quoted_part(part)}" if place else _quoted_part(part)
        lines.setdefault(place, number)
    return place


def _quoted_part(part: str) -> str:
    """Format one part of a key like ``quoted_key``, for any notation in the file."""
    if part.startswith("'"):
        return quoted_key(part[1:-1])
    if not part.startswith('"'):
        return part
    try:
        return quoted_key(tomllib.loads(f"key = {part}")["key"])
    except tomllib.TOMLDecodeError:
        return part
