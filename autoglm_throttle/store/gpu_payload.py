"""Encodes and decodes the GPU rows that a host publishes: compact JSON, version 1.

``{"v":1,"i":<interval in s>,"c":[<columns>],"r":[[<values>],...]}``. Columns are names of ``GpuSample``;
``age_s`` is the age of the measurement when it was published. Null means "not known", as does a missing
column. Counters are published as they are: the reader computes the rates and the verdicts.
A reader validates everything: the payload may have another version, or another author.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final

from autoglm_throttle.gpu import recorded
from autoglm_throttle.gpu.sanity import drop_implausible
from autoglm_throttle.types import GpuSample, ProviderMisconfigured

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1
MOST_BYTES: Final = 16_384  # Maximum size of a payload: some hundred devices
MOST_ROW_BYTES: Final = 900  # Maximum size of one row; a usual one has about 150

MOST_INTERVAL_S: Final = 3600.0

MOST_HOST_CHARACTERS: Final = 255  # Maximum length of a host's name on a network
SOURCE: Final = "fleet"  # Source of the rows of other hosts
_TEXTS: Final = {"device": 100, "name": 64}  # Maximum characters of a published text; a longer one is invalid

# Texts of a row that are not published. The name of a host is that of its payload, and one host's sources are
# joined there.
_NOT_PUBLISHED: Final = frozenset({"host", "notes", "gpu_instance"})

_ALWAYS: Final = ("device", "index", "kind", "name", "health")
# Fields for the means, the capacity and the verdicts of another host -> decimals that are published.
_IF_KNOWN: Final = {
    name: decimals
    for decimals, names in (
        (0, "memory_used_bytes memory_total_bytes energy_j temperature_c sm_clock_mhz sm_clock_max_mhz"),
        (0, "throttle running queued tokens_total preemptions_total"),
        (1, "utilization_pct power_w power_limit_w period_s"),
        (2, "sm_active_ratio"),
        (3, "graphics_active_ratio kv_used_ratio"),
    )
    for name in names.split()
}

_AGE: Final = "age_s"


# One publication of a host: seconds from one of its readings to the next, and its rows. There ``taken_at_s``
# is the time between the read of a row and its publication, as a negative number.
Publication = tuple[float, tuple[GpuSample, ...]]


def encode(rows: Sequence[GpuSample], interval_s: float, now: float) -> str:
    """Encode the payload of this host's own devices, read once in ``interval_s``.

    An implausible value is published as not known, because other hosts ignore a host that publishes one. A
    ValueError means that a row or all of them are too long to be published.
    """
    believed = [drop_implausible(row)[0] for row in rows]
    columns = (*_ALWAYS, *(name for name in _IF_KNOWN if _is_published(name, believed)), _AGE)
    lines = [_json([*(_cell(row, name) for name in columns[:-1]), _age_s(row, now)]) for row in believed]
    longest = max((len(line.encode()) for line in lines), default=0)
    if longest > MOST_ROW_BYTES:
        raise ValueError(f"a row has {longest} bytes, at most {MOST_ROW_BYTES} are published")
    text = f'{{"v":{VERSION},"i":{interval_s:g},"c":{_json(columns)},"r":[{",".join(lines)}]}}'
    if len(text.encode()) > MOST_BYTES:
        raise ValueError(
            f"{len(lines)} devices have {len(text.encode())} bytes, at most {MOST_BYTES} are published"
        )
    return text


def decode(payload: bytes, host: str) -> Publication:
    """Decode a payload of another host; its name stands before the id of each device.

    A ValueError means another version, too many bytes, no JSON, an invalid name of the host, an implausible
    value or an unprintable text: texts appear in logs, labels and terminals.
    """
    if not 0 < len(host) <= MOST_HOST_CHARACTERS or not host.isprintable():
        raise ValueError("its name is empty, too long or not printable")
    if len(payload) > MOST_BYTES:
        raise ValueError(f"it has {len(payload)} bytes, at most {MOST_BYTES} are read")
    try:
        document = json.loads(payload.decode())
    # json raises it for deep nesting; ValueError covers bad UTF-8 and bad JSON.
    except RecursionError:
        raise ValueError("it is no JSON of ours") from None
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    columns, lines, interval_s = document.get("c"), document.get("r"), _seconds(document.get("i"))
    if not (isinstance(columns, list) and isinstance(lines, list) and 0.0 < interval_s <= MOST_INTERVAL_S):
        raise ValueError("columns, rows or interval are missing")
    return interval_s, tuple(_row(columns, line, host) for line in lines)


def _is_published(name: str, rows: Sequence[GpuSample]) -> bool:
    """Return whether a column is published; ``graphics_active_ratio`` stands in for unknown utilization."""
    stands_in = name == "graphics_active_ratio"
    return any(
        getattr(row, name) is not None and not (stands_in and row.utilization_pct is not None) for row in rows
    )


def _cell(row: GpuSample, name: str) -> object:
    value: object = getattr(row, name)
    if isinstance(value, str) and name in _TEXTS:
        # One odd character in a driver's text must not hide a host.
        return "".join(letter if letter.isprintable() else "?" for letter in value[: _TEXTS[name]])
    if isinstance(value, frozenset):
        return sorted(value)
    if not isinstance(value, float):
        return value
    rounded = round(value, _IF_KNOWN[name])
    return int(rounded) if rounded.is_integer() else rounded  # "7" instead of "7.0": two bytes per cell


def _age_s(row: GpuSample, now: float) -> float:
    return round(max(0.0, now - row.taken_at_s + row.age_s), 3)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _row(columns: list[Any], line: object, host: str) -> GpuSample:
    if not isinstance(line, list) or not all(isinstance(name, str) for name in columns):
        raise ValueError("a row is no list")
    cells = dict(zip(columns, line, strict=True))
    age_s = _seconds(cells.pop(_AGE, None))
    try:
        values = recorded.row(cells)
    except ProviderMisconfigured as error:
        raise ValueError(str(error)) from None
    if not values.get("device") or "index" not in values or not 0.0 <= age_s < math.inf:
        raise ValueError("a row has no device, no index or no age")
    texts = [(values.get(name, ""), most) for name, most in _TEXTS.items()]
    legible = all(len(text) <= most and text.isprintable() for text, most in texts)
    if not legible or _NOT_PUBLISHED & values.keys():
        raise ValueError("a row has a text that is too long, not printable or not published")
    device = f"{host}/{values['device']}"
    row = GpuSample(**{**values, "device": device, "host": host, "source": SOURCE, "taken_at_s": -age_s})
    _, wrong = drop_implausible(row)
    if wrong:
        raise ValueError(f"{device}: implausible {', '.join(wrong)}")
    return row


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a time is no number")  # noqa: TRY004 - callers catch one kind of error
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a time is too long") from None
