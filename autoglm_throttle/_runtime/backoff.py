"""Pauses after failures in a row."""

from __future__ import annotations

from typing import Final

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0
"""Pauses after failures in a row: 1, 2, 4 ... 60 s. Initialising a driver can cost seconds of CPU."""


def backoff_s(nth: int) -> float:
    """Return the pause in seconds after the ``nth`` failure in a row, from 1 on: 1, 2, 4 ... 60."""
    return min(BACKOFF_FIRST_S * 2.0 ** min(nth - 1, 6), BACKOFF_MAX_S)  # 2**6 > 60: keeps the power small
