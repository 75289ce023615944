from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings import parse_user_limits, user_limits_text
from autoglm_throttle.settings.groups.callers import WINDOW_AT_MOST_S
from autoglm_throttle.types import UNITS_AT_MOST, UserLimit


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("100/minute", [(100, 60)]),
        ("1000/s", [(1000, 1)]),
        ("5/m", [(5, 60)]),
        ("20/h", [(20, 3600)]),
        ("10/10s", [(10, 10)]),
        ("3/d", [(3, 86_400)]),
        ("10 per 2 second", [(10, 2)]),
        ("10 per 2 MINUTES", [(10, 120)]),
        (" 100/minute;5/second ", [(100, 60), (5, 1)]),
        ("5/second;100/minute", [(5, 1), (100, 60)]),
        ("1/s;2/2s;3/3s;4/4s", [(1, 1), (2, 2), (3, 3), (4, 4)]),
        ("16777215/hr", [(16_777_215, 3600)]),
        ("1/year", [(1, 360 * 86_400)]),
    ],
)
def test_the_notation_is_read(text: str, limits: list[tuple[int, int]]) -> None:
    expected = tuple(UserLimit(f"user-{window_s}s", limit, window_s) for limit, window_s in limits)
    assert parse_user_limits(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "five/minute",
        "100/fortnight",
        "1.5/second",
        "-1/second",
        "100/minute;",
        "0/second",
        "5/0 second",
        "5 per 0s",
        "1/s;2/2s;3/3s;4/4s;5/5s",
        "100/minute;50/60s",
        "16777216/minute",
        "1/2year",
        "9" * 5000 + "/s",
        "1/" + "9" * 150 + "s",
    ],
)
def test_unsupported_user_limit_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"for example|window|limits"):
        parse_user_limits(text)


LIMITS = st.lists(
    st.tuples(st.integers(1, UNITS_AT_MOST), st.integers(1, WINDOW_AT_MOST_S)),
    min_size=1,
    max_size=4,
    unique_by=lambda pair: pair[1],
)


@given(LIMITS)
def test_limits_written_are_the_limits_read(pairs: list[tuple[int, int]]) -> None:
    limits = tuple(UserLimit(f"user-{window_s}s", limit, window_s) for limit, window_s in pairs)
    assert parse_user_limits(user_limits_text(limits)) == limits


@given(st.text(max_size=60))
def test_no_text_does_anything_else(text: str) -> None:
    try:
        limits = parse_user_limits(text)
    except ValueError:
        return
    assert parse_user_limits(user_limits_text(limits)) == limits
