"""The trace file form, with the oddities of the published files, on a synthetic file of the same form."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import PriorityMix
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, of_trace
from autoglm_throttle.traffic.trace import HEADER, Trace, TraceItem, load_azure_llm


def synthetic(lines: int = 200) -> list[str]:
    """Rising times with 7 fractional digits across midnight, made from a seed."""
    stream = Random("synthetic trace")
    ticks = 0
    rows = []
    start = datetime(2024, 2, 28, 23, 59, 30, tzinfo=UTC)
    for _ in range(lines):
        stamp = start + timedelta(seconds=ticks // 10_000_000)
        fraction = f"{ticks % 10_000_000:07d}"
        tokens = f"{stream.randint(2, 4000)},{stream.randint(7, 600)}"
        rows.append(f"{stamp:%Y-%m-%d %H:%M:%S}.{fraction},{tokens}")
        ticks += stream.randint(0, 6_000_000)
    return rows


def written(path: Path, rows: list[str], *, newline: str = "\r\n", header: str = HEADER) -> Path:
    path.write_bytes(newline.join([header, *rows]).encode())
    return path


def test_the_published_form_is_read_exactly(tmp_path: Path) -> None:
    trace = load_azure_llm(
        written(
            tmp_path / "t.csv",
            [
                "2023-12-31 23:59:59.9999999,374,44",
                "2024-01-01 00:00:00.0000000,396,109",
                "2024-01-01 00:00:01.0000001,1,1",
            ],
        )
    )
    assert trace.items == (TraceItem(0.0, 374, 44), TraceItem(1e-7, 396, 109), TraceItem(1.0000002, 1, 1))
    assert trace.malformed == 0
    assert trace.duration_s == 1.0000002


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_all_line_endings_are_read(tmp_path: Path, newline: str, end: str) -> None:
    rows = synthetic()
    path = written(tmp_path / "t.csv", rows, newline=newline)
    path.write_bytes(path.read_bytes() + end.encode())
    trace = load_azure_llm(path)
    assert len(trace.items) == 200
    assert [item.t_s for item in trace.items] == sorted(item.t_s for item in trace.items)


def test_packed_files_and_byte_order_marks_are_read_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path / "t.csv", synthetic())
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
    assert load_azure_llm(packed) == load_azure_llm(plain)


@pytest.mark.parametrize(
    ("stamp", "offset_s"),
    [
        ("2024-01-01 00:00:01", 1.0),
        ("2024-01-01T00:00:01Z", 1.0),
        ("2024-01-01 02:00:01+02:00", 1.0),
        ("2023-12-31 19:30:01.5-0430", 1.5),
        ("2024-01-01 00:00:00.123456789", 0.1234567),
    ],
)
def test_stamps_with_zones_and_other_fractions(tmp_path: Path, stamp: str, offset_s: float) -> None:
    path = written(tmp_path / "t.csv", ["2024-01-01 00:00:00,1,1", f"{stamp},1,1"])
    assert load_azure_llm(path).items[1].t_s == offset_s


MALFORMED = [
    "",
    "2024-02-30 00:00:00,1,1",
    "2024-02-28 24:00:00,1,1",
    "2024-02-28 23:60:00,1,1",
    "yesterday,1,1",
    "2024-03-01 00:00:00,1",
    "2024-03-01 00:00:00,1,1,1",
    "2024-03-01 00:00:00,-1,1",
    "2024-03-01 00:00:00,1.5,1",
    "2024-03-01 00:00:00,1,999999999",
    "2024-03-01 00:00:00,٣,1",
    "2024-03-01 00:00:00" + " " * 2000 + ",1,1",
]


@pytest.mark.parametrize("line", MALFORMED)
def test_a_few_malformed_lines_are_counted(tmp_path: Path, line: str) -> None:
    trace = load_azure_llm(written(tmp_path / "t.csv", [*synthetic(), line, "2024-03-01 00:00:01,5,6"]))
    assert trace.malformed == 1
    assert len(trace.items) == 201


def test_more_than_1_percent_malformed_lines_is_an_error(tmp_path: Path) -> None:
    exactly = [*synthetic(198), "x", "y"]
    assert load_azure_llm(written(tmp_path / "t.csv", exactly)).malformed == 2
    with pytest.raises(TrafficError, match=r"3 of 200 lines are malformed, the first is line 199"):
        load_azure_llm(written(tmp_path / "t.csv", [*synthetic(197), "x", "y", "z"]))


def test_time_going_back_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    rows = ["2024-01-01 00:00:01,1,1", "2024-01-01 00:00:00.5,1,1"]
    with pytest.raises(TrafficError, match=r"line 3: 0\.5 s back in time"):
        load_azure_llm(written(tmp_path / "t.csv", rows))


def test_equal_times_are_no_step_back(tmp_path: Path) -> None:
    rows = ["2024-01-01 00:00:01,1,1", "2024-01-01 00:00:01,1,1"]
    assert load_azure_llm(written(tmp_path / "t.csv", rows)).duration_s == 0.0


def test_other_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="expected the header"):
        load_azure_llm(written(tmp_path / "t.csv", synthetic(), header="time,tokens"))
    with pytest.raises(TrafficError, match="no request"):
        load_azure_llm(written(tmp_path / "t.csv", []))
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(TrafficError, match="expected the header"):
        load_azure_llm(tmp_path / "empty.csv")
    with pytest.raises(TrafficError, match="cannot be read"):
        load_azure_llm(tmp_path / "missing.csv")
    (tmp_path / "not.csv.gz").write_bytes(b"plain text")
    with pytest.raises(TrafficError, match="cannot be read"):
        load_azure_llm(tmp_path / "not.csv.gz")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(f"{HEADER}\n".encode() * 100)[:-9])
    with pytest.raises(TrafficError, match="cannot be read"):
        load_azure_llm(tmp_path / "cut.csv.gz")
    spoilt = bytearray(gzip.compress(HEADER.encode() * 100))
    spoilt[12] ^= 0xFF
    (tmp_path / "spoilt.csv.gz").write_bytes(spoilt)
    with pytest.raises(TrafficError, match="cannot be read"):
        load_azure_llm(tmp_path / "spoilt.csv.gz")
    (tmp_path / "latin.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(TrafficError, match="cannot be read"):
        load_azure_llm(tmp_path / "latin.csv")


def test_a_trace_becomes_a_load_of_its_times_and_tokens() -> None:
    trace = Trace((TraceItem(0.0, 5, 7), TraceItem(1.5, 9, 0), TraceItem(3.0, 5, 7)), 0)
    options = ReplayOptions(mix=PriorityMix(clients=3), seed=4, target="/v1/generate?x=1")
    load = of_trace(trace, Selection(speed=3.0), options)
    assert list(load.plan.offsets) == [0.0, 0.5, 1.0]
    bodies = [json.loads(load.requests[kind].body) for kind in load.plan.kinds]
    assert bodies == [
        {"context_tokens": 5, "tokens": 7},
        {"context_tokens": 9, "tokens": 1},
        {"context_tokens": 5, "tokens": 7},
    ]
    assert len(load.requests) == 2
    assert {request.target for request in load.requests} == {"/v1/generate?x=1"}
    assert {request.label for request in load.requests} == {"POST /v1/generate"}


def test_trace_load_is_deterministic_and_rejects_a_bad_speed(tmp_path: Path) -> None:
    trace = load_azure_llm(written(tmp_path / "t.csv", synthetic()))
    first, again, other = (
        of_trace(trace, Selection(), ReplayOptions(mix=PriorityMix(clients=50, skew=1.0), seed=seed))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first.plan.clients != other.plan.clients
    with pytest.raises(TrafficError, match="speed"):
        Selection(speed=0.0)


def test_endless_line_is_not_buffered(tmp_path: Path) -> None:
    rows = [f"2024-05-10 00:{n // 60:02}:{n % 60:02},1,1" for n in range(200)]
    path = tmp_path / "t.csv.gz"
    long = "9" * (16 << 20)
    path.write_bytes(gzip.compress("\n".join([HEADER, *rows, long, rows[-1], ""]).encode(), 1))
    del long
    tracemalloc.start()
    try:
        trace = load_azure_llm(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert (len(trace.items), trace.malformed) == (201, 1)
