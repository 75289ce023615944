"""Resource needs stated by a demand."""

from typing import Any

import pytest

from autoglm_throttle import Demand


def test_it_says_nothing_by_itself() -> None:
    demand = Demand()
    assert (demand.memory_bytes, demand.precision) == (None, "")


def test_stated_needs_are_stored() -> None:
    demand = Demand(memory_bytes=1, precision="int8")
    assert (demand.memory_bytes, demand.precision) == (1, "int8")


@pytest.mark.parametrize(
    ("stated", "error"),
    [
        ({"memory_bytes": 0}, ValueError),
        ({"memory_bytes": -1}, ValueError),
        ({"memory_bytes": 1.5}, TypeError),
        ({"memory_bytes": True}, TypeError),
        ({"memory_bytes": "1"}, TypeError),
        ({"precision": None}, TypeError),
        ({"precision": b"int8"}, TypeError),
    ],
)
def test_impossible_need_is_rejected(stated: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(stated))):
        Demand(**stated)
