"""Rows as text: every fault is named, with its line and a suggestion."""

import json
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.recorded import COLUMNS, GIVEN, parse, row
from autoglm_throttle.types import GpuSample, ProviderMisconfigured

TIMED = """t_s,device,utilization_pct,memory_used_bytes,event
0,GPU-a,50,,
0,GPU-b,60,8e9,
2.5,GPU-a,92.5,,hang:3
"""


def faults(text: str, *, jsonl: bool = False) -> str:
    with pytest.raises(ProviderMisconfigured) as caught:
        parse(text, jsonl=jsonl)
    return str(caught.value)


def values(text: str, *, jsonl: bool = False) -> list[dict[str, Any]]:
    """The fields of each row of a live state."""
    ((_, lines),) = parse(text, jsonl=jsonl)
    return [line for line, _, _ in lines]


def test_rows_are_grouped_by_their_time() -> None:
    first, second = parse(TIMED, jsonl=False)
    assert (first[0], second[0]) == (0.0, 2.5)
    values = {"device": "GPU-b", "utilization_pct": 60.0, "memory_used_bytes": 8_000_000_000}
    assert first[1][1] == (values, "", 0.0)
    assert second[1] == [({"device": "GPU-a", "utilization_pct": 92.5}, "hang", 3.0)]


def test_without_times_all_rows_are_now() -> None:
    lines = [({"utilization_pct": 1.0}, "", 0.0), ({"utilization_pct": 2.0}, "", 0.0)]
    assert parse("utilization_pct\n1\n\n  \n2\n", jsonl=False) == [(-math.inf, lines)]


def test_json_lines_equal_csv() -> None:
    text = (
        '{"t_s": 0, "device": "GPU-a", "utilization_pct": 50, "memory_used_bytes": null}\n\n'
        '{"t_s": 0, "device": "GPU-b", "utilization_pct": 60, "memory_used_bytes": 8e9}\n'
        '{"t_s": 2.5, "device": "GPU-a", "utilization_pct": 92.5, "event": "hang:3"}\n'
    )
    assert parse(text, jsonl=True) == parse(TIMED, jsonl=False)


def test_every_kind_of_column() -> None:
    line = {
        "index": 3, "host": "h", "name": "H100", "kind": "mig", "gpu_instance": "GPU-1/3",
        "health": "degraded", "notes": ["a", "b"],
        "power_w": 1.5, "memory_total_bytes": "1e3",
    }  # fmt: skip
    assert values(json.dumps(line), jsonl=True) == [line | {"notes": ("a", "b"), "memory_total_bytes": 1000}]
    assert values("notes,utilization_pct\na; b;,1\n")[0]["notes"] == ("a", "b")


def test_every_field_of_a_sample_has_a_column() -> None:
    names = {field.name for field in fields(GpuSample)} - GIVEN
    assert names == set(COLUMNS) - {"t_s", "event"}
    whole = {field.name for field in fields(GpuSample) if field.type == "int | None"}
    assert "tokens_total" in whole
    numbers = {field.name for field in fields(GpuSample) if "float" in str(field.type)} & names
    for name in names & (whole | numbers):
        assert values(f"{name}\n7.5\n") == [{name: 7 if name in whole else 7.5}]


def test_throttle_reasons_are_read() -> None:
    table = "throttle,index\nsw_thermal; hw_slowdown,0\nnone,1\n,2\n"
    read = [line.get("throttle") for line in values(table)]
    assert read == [{"sw_thermal", "hw_slowdown"}, frozenset(), None]
    lines = '{"throttle": ["sw_thermal"]}\n{"throttle": []}\n{"throttle": null}\n{"throttle": "none"}'
    read = [line.get("throttle") for line in values(lines, jsonl=True)]
    assert read == [{"sw_thermal"}, frozenset(), None, frozenset()]


def test_an_engine_is_a_row_like_any_other() -> None:
    table = "kind,device,queued,kv_used_ratio,tokens_total,age_s,period_s\nengine,h:1#0,3,0.5,1e6,2.5,30\n"
    (read,) = values(table)
    assert read == {
        "kind": "engine", "device": "h:1#0", "queued": 3, "kv_used_ratio": 0.5, "tokens_total": 1_000_000,
        "age_s": 2.5, "period_s": 30.0,
    }  # fmt: skip


def test_a_sentinel_is_left_to_the_check_of_plausibility() -> None:
    (read,) = values('{"utilization_pct": NaN, "memory_used_bytes": Infinity}', jsonl=True)
    assert read["utilization_pct"] != read["utilization_pct"]
    assert read["memory_used_bytes"] == float("inf")


def test_all_faults_are_listed_together() -> None:
    message = faults("utilisation_pct,event,zzz\n1,lost,\n2,gone,\n3,hang,\n4,error:3,\n5,,,9\n")
    assert "'utilisation_pct' is unknown, did you mean 'utilization_pct'?" in message
    assert "'zzz' is unknown, known are device, index" in message
    for number, text in ((3, "'gone'"), (4, "'hang'"), (5, "'error:3'")):
        assert f"line {number}: event: {text} is none of lost, error, stale, hang:SECONDS" in message
    assert "line 6: 4 cells, but 3 columns" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no rows"),
        ("utilization_pct\n", "there are no rows"),
        ("utilization_pct,utilization_pct\n1,2\n", "'utilization_pct' is there twice"),
        ("utilization_pct\nabc\n", "line 2: utilization_pct: 'abc' is no number"),
        ("index\n1.5\n", "is no index"),
        ("index\n-1\n", "is no index"),
        ("index\nnan\n", "is no index"),
        ("kind\ncpu\n", "is none of gpu, mig, engine"),
        ("throttle\nsw_thermal;tired\n", "is none of hw_power_brake, hw_slowdown, hw_thermal, sw_power_cap"),
        ("health\nfine\n", "is none of ok, degraded, lost"),
        ("t_s,index\n-1,0\n", "is no time from the start"),
        ("t_s,index\ninf,0\n", "is no time from the start"),
        ("t_s,index\n1,0\n0.5,0\n", "t_s goes back"),
        ("t_s,index\n1,0\n,0\n", "t_s is given in 1 of 2 rows"),
        ("t_s,device\n1,a\n1,a\n", "a device stands twice at one time"),
        ("taken_at_s\n1\n", "'taken_at_s' is unknown"),
        ('index\n"1\n', "no CSV"),
    ],
)
def test_a_faulty_table_says_so(text: str, message: str) -> None:
    assert message in faults(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: no JSON"),
        ("\n[1]", "line 2: not a JSON object"),
        ("[" * 100_000, "line 1: no JSON"),
        ('{"utilization_pct": true}', "is no number"),
        ('{"utilization_pct": [1]}', "is no number"),
        ('{"utilization_pct": 1' + "0" * 400 + "}", "is no number"),
        ('{"device": 1}', "is no text"),
        ('{"notes": [1]}', "is no text"),
        ('{"notes": 1}', "notes"),
        ('{"throttle": ["tired"]}', "is none of hw_power_brake"),
        ('{"throttle": 1}', "throttle"),
        ('{"event": 1}', "is no text"),
        ('{"health": []}', "is none of ok"),
        ('{"x": 1}\n{"x": 1}', "column 'x'"),
    ],
)
def test_malformed_json_line_is_reported(text: str, message: str) -> None:
    assert message in faults(text, jsonl=True)


def test_a_column_is_named_once_and_the_list_ends_at_twenty() -> None:
    assert faults('{"x": 1}\n{"x": 1}', jsonl=True).count("column 'x'") == 1
    message = faults("index\n" + "x\n" * 30)
    assert message.count("is no number") == 20
    assert message.endswith(" and 10 more")


def test_a_row_in_code_is_checked_alike() -> None:
    assert row({"utilization_pct": 5, "device": "a", "power_w": None}) == {
        "utilization_pct": 5.0,
        "device": "a",
    }
    with pytest.raises(
        ProviderMisconfigured, match=r"'power' is unknown, did you mean 'power_w'\?; .*is no number"
    ):
        row({"power": 1, "utilization_pct": "x"})
    with pytest.raises(ProviderMisconfigured, match="'event' is unknown"):
        row({"event": "lost"})


@given(st.text(max_size=200), st.booleans())
def test_any_text_is_a_recording_or_a_list_of_faults(text: str, jsonl: bool) -> None:
    try:
        recording = parse(text, jsonl=jsonl)
    except ProviderMisconfigured:
        return
    assert recording


CELLS = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)


@given(st.lists(st.dictionaries(st.sampled_from(COLUMNS), CELLS), max_size=4))
def test_any_values_are_a_recording_or_a_list_of_faults(rows: list[dict[str, object]]) -> None:
    try:
        recording = parse("\n".join(map(json.dumps, rows)), jsonl=True)
    except ProviderMisconfigured:
        return
    assert sum(len(lines) for _, lines in recording) == len(rows)
