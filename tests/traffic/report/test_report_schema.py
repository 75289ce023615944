"""A report from outside is read only if every part of it has its form."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import dumps, loads, make
from autoglm_throttle.traffic.report.schema import About, Cost, Document
from autoglm_throttle.traffic.report.schema_check import schema_error
from autoglm_throttle.types import Priority
from tests.traffic.report.sample_runs import RUN_INFO, Sent, made

TOLD: dict[str, Any] = json.loads(dumps(make(made([Sent(priority=Priority.LOW)]), RUN_INFO)))

Path = tuple[str | int, ...]


def places(value: object, path: Path = ()) -> Iterator[Path]:
    """Where something stands in a report, except in the parts that may hold anything."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


PLACES = [path for path in places(TOLD) if path[0] not in {"schema", "kind"}]
REQUIRED = [path for path in PLACES if path[-1] in {"title", "totals", "response", "count", "planned", "lag"}]


def changed(path: Path) -> tuple[dict[str, Any], Any]:
    """A copy of the report, and the part of it that holds the last step of the path."""
    whole = copy.deepcopy(TOLD)
    holder: Any = whole
    for step in path[:-1]:
        holder = holder[step]
    return whole, holder


def test_written_report_matches_the_schema() -> None:
    assert schema_error(TOLD, Document) is None


@given(st.sampled_from(PLACES))
def test_part_of_the_wrong_type_is_located(path: Path) -> None:
    whole, holder = changed(path)
    holder[path[-1]] = {"a": [True]} if path[-1] != "replay" else True
    place = ".".join(map(str, path))
    found = schema_error(whole, Document)
    assert found is not None
    assert found.startswith(place)
    with pytest.raises(TrafficError, match="the report is damaged"):
        loads(json.dumps(whole))


@given(st.sampled_from(REQUIRED))
def test_a_part_that_is_missing_is_named(path: Path) -> None:
    whole, holder = changed(path)
    if isinstance(holder, dict) and path[-2:-1] != ("priorities",):
        del holder[path[-1]]
        assert schema_error(whole, Document) == ".".join(map(str, path))


@pytest.mark.parametrize(
    ("value", "hint", "place"),
    [
        (1, float, None),
        (1.5, float, None),
        (1.5, int, "here"),
        (True, int, "here"),
        (True, bool, None),
        (True, object, None),
        ("x", object, None),
        ("x", str, None),
        (None, str, "here"),
        (None, float | None, None),
        ("x", float | None, "here"),
        ("a", Literal["a", "b"], None),
        ("c", Literal["a", "b"], "here"),
        ([1, "x"], list[int], "here.1"),
        ({"k": "x"}, dict[str, int], "here.k"),
        ({"k": 1}, dict[str, int], None),
        ([], dict[str, int], "here"),
        ({}, list[int], "here"),
        ({}, About, None),
        ({"cores": "2"}, About, "here.cores"),
        ({"planned": 1.0}, Cost, "here.served"),
        ([], Cost, "here"),
    ],
)
def test_each_kind_of_type(value: object, hint: object, place: str | None) -> None:
    assert schema_error(value, hint, "here") == place
