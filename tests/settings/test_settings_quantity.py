"""Numbers with units are read exactly; other texts are rejected."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings.field_types import UNITS, parse_quantity, plain


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("250ms", "s", 0.25),
        ("3m", "s", 180.0),
        ("1.5 H", "s", 5400.0),
        ("2d", "s", 172_800.0),
        ("12us", "s", 12e-6),
        ("256MiB", "bytes", 268_435_456.0),
        ("1kB", "bytes", 1000.0),
        ("85%", "share", 0.85),
        ("57%", "share", 0.57),
        ("85%", "%", 85.0),
        ("6000/m", "requests/s", 100.0),
        ("1000/s", "requests/s", 1000.0),
        ("3600/h", "requests/s", 1.0),
        (" 7 ", "", 7.0),
        ("+.5", "", 0.5),
        ("5.", "", 5.0),
        ("1e3", "", 1000.0),
        ("2.5E-1 S", "s", 0.25),
    ],
)
def test_a_number_is_read_with_its_unit(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize(
    ("text", "unit", "messages"),
    [
        ("", "s", "not a number"),
        ("ms", "s", "not a number"),
        ("nan", "", "not a number"),
        ("inf", "", "not a number"),
        ("1e999", "", "not a finite number"),
        ("1,5", "", "no unit"),
        ("5 apples", "s", "us, ms, s, m, min, h, d"),
        ("5s", "users", "no unit"),
        ("٣", "", "not a number"),
        ("1e٣", "", "no unit"),
        ("9" * 500, "", "no unit"),
    ],
)
def test_text_that_is_no_number_is_rejected(text: str, unit: str, messages: str) -> None:
    with pytest.raises(ValueError, match=messages):
        parse_quantity(text, unit)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_plain_text_reads_back(value: float) -> None:
    assert parse_quantity(plain(value)) == value


@given(st.sampled_from(sorted(UNITS)), st.floats(0, 1e6, allow_nan=False))
def test_every_spelling_scales_linearly(unit: str, value: float) -> None:
    for spelling in UNITS[unit]:
        one = parse_quantity(f"1{spelling}", unit)
        assert math.isclose(parse_quantity(f"{plain(value)}{spelling}", unit), value * one, rel_tol=1e-12)
