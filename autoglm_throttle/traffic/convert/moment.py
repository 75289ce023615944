"""Moments as nanoseconds since 1970, within what a date can say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LATEST = datetime(9900, 1, 1, tzinfo=UTC)
"""A recording that begins earlier ends before the last date there is: it takes less than 30 years."""


def nanoseconds(moment: datetime) -> int | None:
    """Since 1970; None before it and from the year 9900 on.

    Args:
        moment: without a zone it is taken as UTC.
    """
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not EPOCH <= moment < LATEST:
        return None
    return (moment - EPOCH) // timedelta(microseconds=1) * 1_000


def stamp(at_us: int) -> str:
    """A moment in ISO 8601, from microseconds since 1970."""
    return (EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds")
