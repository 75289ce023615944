"""Converts between dates and nanoseconds since 1970, within the range of dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

LATEST = datetime(9900, 1, 1, tzinfo=UTC)
"""A recording takes less than 30 years, so one that begins earlier ends before the last possible date."""


def nanoseconds(moment: datetime) -> int | None:
    """Return nanoseconds since 1970; None before it and from the year 9900 on.

    Args:
        moment: without a zone it is taken as UTC.
    """
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    if not EPOCH <= moment < LATEST:
        return None
    return (moment - EPOCH) // timedelta(microseconds=1) * 1_000


def stamp(at_us: int) -> str:
    """Format microseconds since 1970 as ISO 8601."""
    return (EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="microseconds")
