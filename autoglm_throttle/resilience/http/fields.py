"""Header fields of HTTP as values. Whatever a peer sends, nothing here raises: nonsense is not there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

SECONDS_AT_MOST = 2**31
"""Where a count of seconds is greater than a cache can hold, it counts as this (RFC 9111 section 1.2.2)."""

NO_BODY = frozenset({204, 304})
"""Answers whose body is empty by definition (RFC 9110 section 6.4.1)."""

DIRECTIVE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)(?:=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,;\"]*)))?")


def members(fields: Iterable[tuple[str, str]], name: str) -> list[str]:
    """The values of each field of that name, in their order.

    Args:
        fields: names in any case, and values.
        name: in lower case.
    """
    return [value.strip() for field, value in fields if field.lower() == name]


def joined(fields: Iterable[tuple[str, str]], name: str) -> str | None:
    """The one value that several fields of a name come to; None: there is no such field.

    An absent field and an empty one are two things (RFC 9111 section 4.1).
    """
    found = members(fields, name)
    return ", ".join(found) if found else None


def seconds(text: str) -> int | None:
    """A count of whole seconds, `SECONDS_AT_MOST` at most; None: it is none."""
    count = whole(text)
    return None if count is None else min(count, SECONDS_AT_MOST)


def whole(text: str) -> int | None:
    """A number of digits alone; None: it is none. Past 18 digits it is so great that only its size counts."""
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text) if len(text) <= 18 else 10**18


def directives(fields: Iterable[tuple[str, str]], name: str = "cache-control") -> Mapping[str, str]:
    """What a list of directives says (RFC 9111 section 5.2): values by names in lower case, ``""`` for none.

    Of a directive said twice the smaller number counts, and a value that is no number counts as the smallest:
    where freshness is unclear, less of it is claimed (RFC 9111 section 4.2.1).
    """
    said: dict[str, str] = {}
    for match in DIRECTIVE.finditer(joined(fields, name) or ""):
        word, quoted, bare = match.group(1).lower(), match.group(2), match.group(3)
        value = quoted if quoted is not None else bare or ""
        said[word] = min(said[word], value, key=lambda text: seconds(text) or 0) if word in said else value
    return said


def moment(fields: Iterable[tuple[str, str]], name: str) -> float | None:
    """The date that a field gives, in seconds since 1970; None: there is none, or it is none."""
    found = members(fields, name)
    return date_s(found[0]) if found else None


def date_s(text: str) -> float | None:
    """An HTTP date in seconds since 1970; None: it is none."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def age_s(fields: Iterable[tuple[str, str]]) -> int:
    """How old an answer says it is: the first of several numbers, else 0 (RFC 9111 section 5.1)."""
    first = (joined(fields, "age") or "").partition(",")[0]
    return seconds(first.strip()) or 0


def retry_after_s(fields: Iterable[tuple[str, str]], wall_s: float) -> float | None:
    """How long Retry-After says to wait; None: it says nothing that can be read.

    A date is taken against the answer's own Date, so that the two clocks need not agree.

    Args:
        fields: of the answer.
        wall_s: seconds since 1970 by this machine's clock, used where the answer has no Date.

    Returns:
        Seconds, 0 for a date that is past.
    """
    pairs = tuple(fields)
    found = members(pairs, "retry-after")
    if not found:
        return None
    count = seconds(found[0])
    if count is not None:
        return float(count)
    then, sent = date_s(found[0]), moment(pairs, "date")
    if then is None:
        return None
    return max(0.0, then - (wall_s if sent is None else sent))


def body_bytes(method: str, status: int, fields: Iterable[tuple[str, str]]) -> int | None:
    """How many bytes of body an answer will have; None: nothing says so before its end.

    Args:
        method: of the request.
        status: of the answer.
        fields: of the answer.
    """
    pairs = tuple(fields)
    if method == "HEAD" or status in NO_BODY:
        return 0
    if members(pairs, "transfer-encoding"):
        return None
    said = members(pairs, "content-length")
    return whole(said[0]) if said else None
