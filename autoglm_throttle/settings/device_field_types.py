"""Field types of GPUs and files: source, devices, pressure, the tier table, a path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from autoglm_throttle.settings.field_types import FieldType, FieldTypeError, Number
from autoglm_throttle.settings.gpu_items import (
    ALLOWED_ITEMS,
    normal_item,
    parse_items,
    shown_item,
    split_items,
)
from autoglm_throttle.settings.quantity import plain

TIERS_AT_MOST = 20
"""Maximum of rows; more are not distinguishable on a scale of 100."""

Tiers = tuple[tuple[float, float], ...]
"""Rows of (edge in percent, factor): above the edge, the rates are multiplied by the factor."""

_DEVICE = re.compile(r"\d{1,4}|GPU-[0-9A-Fa-f][0-9A-Fa-f-]*|MIG-[0-9A-Za-z][0-9A-Za-z/-]*")


class GpuSources(FieldType[tuple[str, ...]]):
    """The sources of telemetry: one or several."""

    allowed = f"a list, separated by commas, of {ALLOWED_ITEMS}"
    example = "auto,vllm:http://127.0.0.1:8000"

    def parse(self, raw: object) -> tuple[str, ...]:
        """Parse text, in which a comma ends an item before a known kind, or a sequence of items."""
        items = self._items(raw)
        parse_items(items)
        return tuple(normal_item(item) for item in items)

    def _items(self, raw: object) -> list[str]:
        if isinstance(raw, str):
            return split_items(raw)
        if not isinstance(raw, Iterable) or isinstance(raw, (bytes, Mapping)):
            raise FieldTypeError
        return [item if isinstance(item, str) else repr(item) for item in raw]

    def text(self, value: tuple[str, ...]) -> str:
        """Format the items separated by commas."""
        return ",".join(value)

    def public(self, value: tuple[str, ...]) -> str:
        """Format the items without passwords."""
        return self.text(self.repr_value(value))

    def repr_value(self, value: tuple[str, ...]) -> tuple[str, ...]:
        """Return the items without passwords."""
        return tuple(shown_item(item) for item in value)

    def describe_error(self, raw: object, reason: ValueError) -> tuple[str, str]:
        """Return the allowed items and, by item, every problem; without passwords."""
        try:
            raw = self.public(tuple(self._items(raw)))
        except FieldTypeError:
            raw = type(raw).__name__
        return super().describe_error(raw, reason)


class LabelMatchers(FieldType[str]):
    """The series that a Prometheus server is queried for."""

    allowed = 'label matchers of PromQL such as cluster="a",Hostname=~"gpu-.*"'
    example = 'cluster="a"'
    _one = re.compile(
        r"""\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(?:=~|!~|!=|=)\s*("|')(?:(?!\1)[^\\]|\\.)*\1\s*(?:,|\Z)"""
    )

    def parse(self, raw: object) -> str:
        """Parse matchers separated by commas, with or without braces around them."""
        if not isinstance(raw, str) or not raw.isprintable():
            raise FieldTypeError
        text = raw.strip()
        if text.startswith("{") and text.endswith("}"):
            text = text[1:-1].strip()
        at = 0
        while at < len(text):
            match = self._one.match(text, at)
            if match is None:
                raise FieldTypeError(f"for example {self.example}")
            at = match.end()
        return text.rstrip(", ")


class Device(FieldType[str]):
    """One device: an index or the start of a UUID."""

    allowed = "NVML indexes, or UUIDs that start with GPU- or MIG-"
    example = "0,1"

    def parse(self, raw: object) -> str:
        """Parse an entry as in CUDA_VISIBLE_DEVICES."""
        text = str(raw).strip()
        if isinstance(raw, bool) or not isinstance(raw, (int, str)) or not _DEVICE.fullmatch(text):
            raise FieldTypeError("neither an index nor a UUID")
        return text


class PressureTerm(FieldType[str]):
    """One load that counts for the pressure."""

    allowed = "queue, kv, memory, latency, compute"
    example = "queue,kv"
    _KNOWN = ("queue", "kv", "memory", "latency", "compute")

    def parse(self, raw: object) -> str:
        """Parse one of the words."""
        word = raw.strip().lower() if isinstance(raw, str) else ""
        if word not in self._KNOWN:
            raise FieldTypeError
        return word


class TierTableType(FieldType[Tiers]):
    """The table of a signal and the factor for the rates."""

    allowed = "percent:factor pairs, edges rising within 0..100, factors falling within 0..1"
    example = "85:0.7,90:0.4,95:0"
    unit = "% : factor"
    _edge = Number(0, 100, "%")
    _factor = Number(0, 1, "share")

    def parse(self, raw: object) -> Tiers:
        """Parse ``85:0.7,90:0.4``, with optional signs such as ``85%:70%``, or a sequence of pairs."""
        rows = tuple(self._row(pair) for pair in _pairs(raw))
        if not 1 <= len(rows) <= TIERS_AT_MOST:
            raise FieldTypeError(f"1 to {TIERS_AT_MOST} rows, for example {self.example}")
        for (edge, factor), (next_edge, next_factor) in pairwise(rows):
            if next_edge <= edge:
                raise FieldTypeError(f"edge {plain(next_edge)} does not rise above {plain(edge)}")
            if next_factor >= factor:
                raise FieldTypeError(f"factor {plain(next_factor)} does not fall below {plain(factor)}")
        return rows

    def _row(self, pair: tuple[object, object]) -> tuple[float, float]:
        edge, factor = pair
        try:
            return self._edge.parse(edge), self._factor.parse(factor)
        except ValueError as error:
            raise FieldTypeError(str(error) or f"for example {self.example}") from None

    def text(self, value: Tiers) -> str:
        """Format the rows as pairs."""
        return ",".join(f"{plain(edge)}:{plain(factor)}" for edge, factor in value)


class FilePath(FieldType[Path]):
    """The path of a file. Whether it can be read shows when it is read."""

    allowed = "the path of a file"
    example = "throttle.toml"

    def parse(self, raw: object) -> Path:
        """Accept a path that can be printed."""
        if not isinstance(raw, (str, Path)) or not str(raw).strip() or not str(raw).isprintable():
            raise FieldTypeError
        return Path(raw)


def _pairs(raw: object) -> list[tuple[object, object]]:
    if isinstance(raw, str):
        halves = [pair.partition(":") for pair in raw.split(",")]
        return [(edge, factor) for edge, _, factor in halves]
    if not isinstance(raw, Iterable) or isinstance(raw, (bytes, Mapping)):
        raise FieldTypeError
    pairs = [tuple(pair) if isinstance(pair, (tuple, list)) else () for pair in raw]
    if any(len(pair) != 2 for pair in pairs):
        raise FieldTypeError
    return [(pair[0], pair[1]) for pair in pairs]
