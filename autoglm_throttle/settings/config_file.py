"""The TOML of ``CONFIG_FILE``: ``[[routes]]``, ``[plans.<name>]``, ``[guards.<name>]`` and settings."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoglm_throttle.settings.problem import spelled

BYTES_AT_MOST = 1 << 20
"""A policy of a thousand routes takes a tenth of it; a wrong path may be a log of gigabytes."""

_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\[\[?\s*({_PATH})\s*\]")
_KEY = re.compile(rf"({_PATH})\s*=")


@dataclass(frozen=True)
class ConfigFile:
    """A file that was read."""

    path: Path
    values: dict[str, Any]
    lines: dict[str, int]
    """Place, such as ``rate_high_rps``, ``routes[1]`` or ``plans.gold``, -> line, from 1."""

    def place(self, key: str) -> str:
        """File, line and key, as far as the line is known: ``throttle.toml:12: routes[1].pattern``."""
        parents = [
            place for place in self.lines if key == place or key.startswith((f"{place}.", f"{place}["))
        ]
        line = self.lines[max(parents, key=len)] if parents else None
        return f"{self.path.name}:{line}: {key}" if line else f"{self.path.name}: {key}"


def read_config_file(path: Path) -> ConfigFile:
    """Read and parse the file.

    Raises:
        ValueError: it cannot be read, is too long, or is not TOML; the text says which.
    """
    try:
        with path.open("rb") as file:
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
    """Where tables and keys begin. The parser does not tell; text inside a long string may mislead us."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        header = _HEADER.match(stripped)
        key = _KEY.match(stripped)
        if header:
            table = _note(lines, "", header[1], number)
            if stripped.startswith("[["):
                position = counts.get(table, 0)
                counts[table] = position + 1
                table = f"{table}[{position}]"
                lines.setdefault(table, number)
        elif key:
            _note(lines, table, key[1], number)
    return lines


def _note(lines: dict[str, int], table: str, path: str, number: int) -> str:
    """Note the line of each table on the way to a key, unless it began before; the place of the key."""
    place = table
    for part in re.findall(_PART, path):
        place = f"{place}.{_spelled(part)}" if place else _spelled(part)
        lines.setdefault(place, number)
    return place


def _spelled(part: str) -> str:
    """One part of a key as ``spelled`` writes it, however the file does."""
    if part.startswith("'"):
        return spelled(part[1:-1])
    if not part.startswith('"'):
        return part
    try:
        return spelled(tomllib.loads(f"key = {part}")["key"])
    except tomllib.TOMLDecodeError:
        return part
