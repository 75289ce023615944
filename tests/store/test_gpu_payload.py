"""The GPU rows that a host publishes, and their validation."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.store.gpu_payload import MOST_BYTES, MOST_ROW_BYTES, decode, encode
from autoglm_throttle.types import GpuSample

GIB = 2**30


def card(index: int = 0, **given: Any) -> GpuSample:
    """A row with every field that a driver reports."""
    values: dict[str, Any] = {
        "device": f"GPU-4f0c2a3e-9b1d-4c57-8a66-0123456789{index:02d}",
        "index": index,
        "taken_at_s": 100.0,
        "source": "nvml",
        "name": "NVIDIA H100 80GB HBM3",
        "utilization_pct": 97.123456,
        "memory_busy_pct": 41.0,
        "memory_used_bytes": 79 * GIB + 12345,
        "memory_total_bytes": 80 * GIB,
        "power_w": 698.123,
        "power_limit_w": 700.0,
        "temperature_c": 64.0,
        "sm_clock_mhz": 1980.0,
        "sm_clock_max_mhz": 1980.0,
        "energy_j": 22_075_200_123.4,
        "throttle": frozenset(),
        "throttled_ns": 10**12,
        "graphics_active_ratio": 0.97123,
        "sm_active_ratio": 0.41234,
        "tensor_active_ratio": 0.3,
        "dram_active_ratio": 0.3,
        "pcie_rx_bytes": 10**12,
    }
    return GpuSample(**{**values, **given})


def said(**changes: Any) -> dict[str, Any]:
    """A payload that is right but for the changes."""
    whole: dict[str, Any] = json.loads(encode([card()], 1.0, 100.0))
    return {**whole, **changes}


def text(value: object) -> bytes:
    return json.dumps(value).encode()


def test_a_row_comes_back_under_its_host() -> None:
    interval_s, (row,) = decode(encode([card(taken_at_s=99.5)], 2.0, 100.0).encode(), "gpu-7")
    assert interval_s == 2.0
    assert (row.host, row.source, row.index, row.taken_at_s) == ("gpu-7", "fleet", 0, -0.5)
    assert row.device == f"gpu-7/{card().device}"
    assert (row.utilization_pct, row.memory_used_bytes, row.health) == (97.1, 79 * GIB + 12345, "ok")
    assert (row.power_w, row.energy_j, row.sm_clock_mhz, row.sm_active_ratio) == (
        698.1,
        22075200123,
        1980,
        0.41,
    )
    assert row.throttle == frozenset()


def test_unknown_field_stays_unknown() -> None:
    bare = GpuSample(device="MIG-1", index=3, taken_at_s=100.0, source="nvml", kind="mig", health="lost")
    (row,) = decode(encode([bare], 1.0, 100.0).encode(), "h")[1]
    assert (row.kind, row.health) == ("mig", "lost")
    assert row.utilization_pct is row.memory_used_bytes is row.power_w is row.temperature_c is None


def test_a_reason_to_slow_down_is_published() -> None:
    slow = card(throttle=frozenset({"sw_thermal", "hw_slowdown"}))
    (row,) = decode(encode([slow], 1.0, 100.0).encode(), "h")[1]
    assert row.throttle == frozenset({"sw_thermal", "hw_slowdown"})


def test_the_age_is_that_of_the_measurement() -> None:
    scraped = card(taken_at_s=99.5, age_s=12.25, period_s=30.0)
    (row,) = decode(encode([scraped], 1.0, 100.0).encode(), "h")[1]
    assert (row.taken_at_s, row.age_s, row.period_s) == (-12.75, 0.0, 30.0)


def test_active_time_is_published_in_place_of_utilization() -> None:
    instance = card(kind="mig", utilization_pct=None)
    assert decode(encode([instance], 1.0, 100.0).encode(), "h")[1][0].graphics_active_ratio == 0.971
    assert decode(encode([card()], 1.0, 100.0).encode(), "h")[1][0].graphics_active_ratio is None


def test_an_engine_is_published_too() -> None:
    engine = GpuSample(
        device="fake:1#0", index=0, taken_at_s=100.0, source="fake", kind="engine", running=7, queued=3,
        kv_used_ratio=0.61234, tokens_total=10**9, preemptions_total=2,
    )  # fmt: skip
    (row,) = decode(encode([engine], 1.0, 100.0).encode(), "h")[1]
    assert (row.kind, row.running, row.queued, row.kv_used_ratio) == ("engine", 7, 3, 0.612)
    assert (row.tokens_total, row.preemptions_total) == (10**9, 2)


def test_the_size_of_rows() -> None:
    one, two = (len(encode([card(n) for n in range(count)], 1.0, 100.0).encode()) for count in (1, 2))
    assert two - one <= 160
    long = card(device="ü" * 500, name="ü" * 500)
    assert len(encode([long], 1.0, 100.0).encode()) <= MOST_ROW_BYTES
    assert len(encode([card(n) for n in range(96)], 1.0, 100.0).encode()) <= MOST_BYTES


def test_too_much_is_not_published() -> None:
    with pytest.raises(ValueError, match="a row has"):
        encode([card(index=10**900)], 1.0, 100.0)
    with pytest.raises(ValueError, match="200 devices have"):
        encode([card(n) for n in range(200)], 1.0, 100.0)
    with pytest.raises(ValueError, match="JSON"):
        encode([card(taken_at_s=-math.inf)], 1.0, 100.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("utilization_pct", 255.0),
        ("power_w", math.nan),
        ("power_limit_w", 0.0),
        ("temperature_c", -math.inf),
        ("memory_used_bytes", 81 * GIB),
        ("memory_used_bytes", 10**900),
        ("memory_total_bytes", 0),
    ],
    ids=lambda value: str(value)[:20],
)
def test_one_value_that_cannot_be_hides_no_host(name: str, value: float) -> None:
    given: dict[str, Any] = {name: value}
    _, (odd, sound) = decode(encode([card(**given), card(1)], 1.0, 100.0).encode(), "h")
    assert getattr(odd, name) is None
    known = {field: getattr(sound, field) for field in ("utilization_pct", "power_w", "memory_total_bytes")}
    known.pop(name, None)
    assert {field: getattr(odd, field) for field in known} == known


FIRST: list[Any] = said()["r"][0]


def cell(name: str, value: object) -> dict[str, Any]:
    """A payload with one cell that is wrong."""
    at = said()["c"].index(name)
    return said(r=[[*FIRST[:at], value, *FIRST[at + 1 :]]])


WRONG = {
    "another version": text(said(v=2)),
    "no version": text([1]),
    "no JSON": b'{"v":1',
    "no text": b"\xff\xfe",
    "too deep": b"[" * 10_000,
    "too long": b" " * (MOST_BYTES + 1),
    "no columns": text(said(c=7)),
    "no rows": text(said(r={})),
    "no interval": text(said(i=None)),
    "interval 0": text(said(i=0)),
    "interval true": text(said(i=True)),
    "interval of digits": text(said(i=10**400)),
    "interval too long": text(said(i=1e9)),
    "a row that is no list": text(said(r=[7])),
    "a row too short": text(said(r=[[1]])),
    "a column that is no text": text(said(c=[7, *said()["c"][1:]])),
    "an unknown column": text(said(c=["devise", *said()["c"][1:]])),
    "no device": text(cell("device", "")),
    "a device that is no text": text(cell("device", 7)),
    "no index": text(cell("index", None)),
    "no age": text(cell("age_s", None)),
    "an age before": text(cell("age_s", -1)),
    "an endless age": text(cell("age_s", 1)).replace(b"1]", b"Infinity]"),
    "200 %": text(cell("utilization_pct", 200)),
    "NaN": text(cell("power_w", 1)).replace(b"1, 700", b"NaN, 700"),
    "more than all": text(cell("memory_used_bytes", 81 * GIB)),
    "no health": text(cell("health", "fine")),
    "a device that is too long": text(cell("device", "d" * 101)),
    "a name that is too long": text(cell("name", "n" * 65)),
    "a host in a row": text(said(c=[*said()["c"], "host"], r=[[*FIRST, "other"]])),
    "a part of a card": text(said(c=[*said()["c"], "gpu_instance"], r=[[*FIRST, "GPU-1/3"]])),
    "notes": text(said(c=[*said()["c"], "notes"], r=[[*FIRST, "\x1b[2J;"]])),
}


@pytest.mark.parametrize("payload", WRONG.values(), ids=WRONG.keys())
def test_implausible_payload_is_ignored(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own
        decode(payload, "h")


def test_the_same_with_nothing_wrong_is_read() -> None:
    assert len(decode(text(said()), "h")[1]) == 1


@pytest.mark.parametrize("host", ["", "h" * 256])
def test_invalid_host_name_is_ignored(host: str) -> None:
    with pytest.raises(ValueError, match="name"):
        decode(text(said()), host)


UNPRINTABLE = {
    "a new line": "\n",
    "an escape": "\x1b",
    "nothing": "\0",
    "delete": "\x7f",
    "a control of Latin 1": "\x9b",
    "right to left": "\u202e",
    "no width": "\u200b",
    "a line": "\u2028",
    "half a character": "\ud800",
}


@pytest.mark.parametrize("odd", UNPRINTABLE.values(), ids=UNPRINTABLE.keys())
def test_unprintable_text_is_ignored(odd: str) -> None:
    for column in ("device", "name"):
        with pytest.raises(ValueError, match="printable"):
            decode(text(cell(column, f"a{odd}b")), "h")
    with pytest.raises(ValueError, match="name"):
        decode(text(said()), f"a{odd}b")


@pytest.mark.parametrize("odd", UNPRINTABLE.values(), ids=UNPRINTABLE.keys())
def test_host_is_kept_despite_odd_driver_text(odd: str) -> None:
    (row,) = decode(encode([card(device=f"a{odd}b", name=f"c{odd}d")], 1.0, 100.0).encode(), "h")[1]
    assert (row.device, row.name) == ("h/a?b", "c?d")


@given(st.text(max_size=120), st.text(max_size=120), st.text(min_size=1, max_size=300))
def test_accepted_text_is_printable(device: str, name: str, host: str) -> None:
    row = [*FIRST]
    row[said()["c"].index("device")], row[said()["c"].index("name")] = device, name
    with contextlib.suppress(ValueError):
        (read,) = decode(text(said(r=[row])), host)[1]
        assert f"{read.device}{read.name}{read.host}".isprintable()
        assert len(read.device) <= 255 + 1 + 100
        assert len(read.name) <= 64


@given(st.text(min_size=1, max_size=100).filter(str.strip), st.text())
def test_whatever_a_driver_says_is_published(device: str, name: str) -> None:
    assert len(decode(encode([card(device=device, name=name)], 1.0, 100.0).encode(), "h")[1]) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("vicr"), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.binary(max_size=60)
    | json_values.map(text)
    | json_values.map(lambda x: text(said(r=[[x] * len(FIRST)])))
)
def test_whatever_comes_raises_nothing_else(payload: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(payload, "h")
