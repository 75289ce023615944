"""Reads the TOML of ``CONFIG_FILE``: ``[[routes]]``, ``[plans.<name>]``, ``[guards.<name>]`` and settings."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.settings.problems import quoted_key

BYTES_AT_MOST: Final = 1 << 20
"""A policy of a thousand routes needs a tenth of it; a wrong path may be a log of gigabytes."""

DEPTH_AT_MOST: Final = 20
"""Brackets within brackets, and parts of a key; the deepest table of ours needs four."""

_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PATH = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADER = re.compile(rf"\[\[?\s*({_PATH})\s*\]")
_KEY = re.compile(rf"({_PATH})\s*=")
_PARTS = re.compile(_PART)
_PLACE = re.compile(r'"(?:[^"\\]|\\.)*"|\[\d+\]|[^.\["]+')


@dataclass(frozen=True)
class ConfigFile:
    """A parsed file with the lines of its keys."""

    path: Path
    values: dict[str, Any]
    lines: dict[str, int]
    """Place, such as ``rate_high_rps``, ``routes[1]`` or ``plans.gold``, -> line, from 1."""

    def place(self, key: str) -> str:
        """Format file, line (if it is known) and key: ``throttle.toml:12: routes[1].pattern``."""
        line = next((self.lines[key[:end]] for end in _ends(key) if key[:end] in self.lines), None)
        return f"{self.path.name}:{line}: {key}" if line else f"{self.path.name}: {key}"


def read_config_file(path: Path) -> ConfigFile:
    """Read and parse the file.

    Raises:
        ValueError: it is no regular file, cannot be read, is too long or too deeply nested, or is not TOML;
            the text names the reason.
    """
    try:
        data = read_regular_file(path)
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None
    if len(data) > BYTES_AT_MOST:
        raise ValueError(f"longer than {BYTES_AT_MOST} bytes")
    try:
        text = data.decode("utf-8")
        lines = _lines(text)
        values = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return ConfigFile(path, values, lines)


def read_regular_file(path: Path) -> bytes:
    """Read a regular file, up to one byte more than allowed.

    Raises:
        OSError: it cannot be read.
        ValueError: it is another kind of file.
    """
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - of a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        # The byte more shows that the file is too long, without reading all of it.
        return file.read(BYTES_AT_MOST + 1)


def _ends(key: str) -> list[int]:
    """Return where the key and the tables around it end, the longest first."""
    return [match.end() for match in _PLACE.finditer(key)][::-1]


def _lines(text: str) -> dict[str, int]:
    """Find the lines where tables and keys begin.

    Raises:
        ValueError: a key has too many parts.
    """
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
    parts = _PARTS.findall(path)
    if len(parts) > DEPTH_AT_MOST:
        raise ValueError("nested too deeply")
    for part in parts:
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
