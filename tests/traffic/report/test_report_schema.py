"""A report from outside is read only if every part of it has its form."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import dumps, loads, make
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


def place_of_damage(whole: dict[str, Any]) -> str:
    with pytest.raises(TrafficError, match="the report is damaged: ") as damaged:
        loads(json.dumps(whole))
    place = re.fullmatch("the report is damaged: (.*) is missing or of the wrong type", str(damaged.value))
    assert place is not None
    return place[1]


def test_written_report_matches_the_schema() -> None:
    assert loads(json.dumps(TOLD)) == TOLD


@given(st.sampled_from(PLACES))
def test_part_of_the_wrong_type_is_located(path: Path) -> None:
    whole, holder = changed(path)
    holder[path[-1]] = {"a": [True]} if path[-1] != "replay" else True
    assert place_of_damage(whole).startswith(".".join(map(str, path)))


@given(st.sampled_from(REQUIRED))
def test_a_part_that_is_missing_is_named(path: Path) -> None:
    whole, holder = changed(path)
    if isinstance(holder, dict) and path[-2:-1] != ("priorities",):
        del holder[path[-1]]
        assert place_of_damage(whole) == ".".join(map(str, path))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("load.duration_s", 1),
        ("totals.error_ratio", None),
        ("about", {}),
        ("about", {"cores": 2, "of a later version": True}),
        ("replay", {"any": [True, None, "x"]}),
        ("totals.reasons", {}),
        ("load.loop", "closed"),
    ],
)
def test_each_kind_of_type_is_read(path: str, value: object) -> None:
    *_, last = steps = tuple(path.split("."))
    whole, holder = changed(steps)
    holder[last] = value
    assert loads(json.dumps(whole)) == whole


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("load.seed", 1.5, "load.seed"),
        ("load.seed", True, "load.seed"),
        ("load.duration_s", True, "load.duration_s"),
        ("load.duration_s", "1", "load.duration_s"),
        ("verdict.valid", 1, "verdict.valid"),
        ("title", None, "title"),
        ("totals.error_ratio", "x", "totals.error_ratio"),
        ("load.loop", "c", "load.loop"),
        ("seconds.planned", [1, "x"], "seconds.planned.1"),
        ("totals.reasons", {"k": "x"}, "totals.reasons.k"),
        ("totals.reasons", [], "totals.reasons"),
        ("seconds.planned", {}, "seconds.planned"),
        ("about", {"cores": "2"}, "about.cores"),
        ("totals.cost", {"planned": 1.0}, "totals.cost.served"),
        ("totals.cost", [], "totals.cost"),
    ],
)
def test_each_kind_of_wrong_type_is_located(path: str, value: object, place: str) -> None:
    *_, last = steps = tuple(path.split("."))
    whole, holder = changed(steps)
    holder[last] = value
    assert place_of_damage(whole) == place
