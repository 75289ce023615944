"""Cached results of functions are bounded in bytes."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle import Fallback
from autoglm_throttle.testing import throttle_for_tests


class Record:
    """A value of an application."""

    def __init__(self, text: str) -> None:
        self.text = text


class Array:
    """A value with memory outside Python, as arrays have."""

    nbytes = 5000


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("value", "is_kept"),
    [
        ("x" * 500, True),
        ("x" * 1500, False),
        (["x" * 100 for _ in range(20)], True),  # one object, twenty times
        ([str(number) * 100 for number in range(20)], False),
        ({"rows": [{"text": "x" * 1500}]}, False),
        (Record("x" * 1500), False),
        (Record("x" * 300), True),
        (Array(), False),
        (None, True),
    ],
)
def test_larger_results_are_not_kept(value: Any, is_kept: bool, shared: bool) -> None:
    """FIELD 28: 512 MB of kept answers."""
    throttle = throttle_for_tests(degrade_cache_body_bytes=1200)
    fallback = Fallback(stale=True, static="static", shared_value=shared)
    throttle.feature("db", fallback=fallback)
    is_down = False

    @throttle.guard("db")
    def answer() -> Any:
        if is_down:
            raise OSError("down")
        return value

    assert answer() is value
    is_down = True
    assert (answer() == "static") is not is_kept


def test_large_arguments_are_not_kept_either() -> None:
    throttle = throttle_for_tests(degrade_cache_body_bytes=1200)
    throttle.feature("db", fallback=Fallback(stale=True, static="static"))
    is_down = False

    @throttle.guard("db")
    def answer(text: str) -> str:
        if is_down:
            raise OSError("down")
        return "live"

    assert (answer("x" * 1500), answer("x")) == ("live", "live")
    is_down = True
    assert (answer("x" * 1500), answer("x")) == ("static", "live")
