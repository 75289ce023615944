"""A window over a JSON document finds the same elements as the whole document."""

from __future__ import annotations

import io
import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.convert import elements
from autoglm_throttle.traffic.convert.elements import JsonWindow
from autoglm_throttle.traffic.errors import TrafficError

LEAVES = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e6, 1e6) | st.text(max_size=6)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def read(document: bytes, chunk: int) -> list[tuple[int, object]]:
    with patch.object(elements, "CHUNK", chunk):
        window = JsonWindow(io.BytesIO(document))
        window.enter_array("log", "entries")
        return list(window.elements())


def fault(document: bytes, chunk: int) -> str:
    try:
        return f"line by line {len(read(document, chunk))}"
    except TrafficError as problem:
        return str(problem)


@given(
    found=st.lists(VALUES, max_size=5),
    before=st.dictionaries(st.text(max_size=4).filter(lambda name: name != "entries"), VALUES, max_size=3),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 0, 2]),
    plain=st.booleans(),
)
def test_elements_are_those_of_the_whole_document(
    found: list[object], before: dict[str, object], chunk: int, indent: int | None, plain: bool
) -> None:
    document = {"log": {**before, "entries": found, "after": 1}, "more": []}
    text = json.dumps(document, indent=indent, ensure_ascii=plain)
    assert [value for _, value in read(text.encode("utf-8", "surrogatepass"), chunk)] == found


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(1, 10))
def test_number_across_the_window_edge_is_read_completely(numbers: list[int], chunk: int) -> None:
    lines = ",\n".join(map(str, numbers))
    found = read(f'{{"log": {{"entries": [\n{lines}]}}}}'.encode(), chunk)
    assert found == [(line, number) for line, number in enumerate(numbers, start=2)]


@given(st.binary(max_size=60), st.integers(1, 9))
def test_arbitrary_bytes_yield_elements_or_an_error(noise: bytes, chunk: int) -> None:
    for document in (noise, b'{"log": {"entries": [' + noise):
        assert fault(document, chunk).startswith("line ")


@given(st.binary(max_size=20), st.integers(0, 80))
def test_truncated_document_yields_its_first_elements(noise: bytes, cut: int) -> None:
    whole = b'{"log": {"entries": [1, [2, {"a": "b"}], "\xc3\xa9", {"c": 3.5}]}}'
    with pytest.raises(TrafficError, match="line 1"):
        read(whole[: min(cut, len(whole) - 3)] + b"\x00" + noise, 7)
