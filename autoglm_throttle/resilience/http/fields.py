"""Parsers of HTTP header fields, and the fields that may identify a user.

No parser raises: an invalid value counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from autoglm_throttle.resilience.http.answer import Pairs

MAX_SECONDS = 2**31  # Cap for numbers of seconds (RFC 9111 section 1.2.2)
NO_BODY = frozenset({204, 304})  # Statuses without a body by definition (RFC 9110 section 6.4.1)

# RFC 9110 section 7.6.1, and the fields of the authentication of a proxy. A server answers ``expect`` itself.
HOP_BY_HOP: Final = frozenset(
    b"connection expect keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
NEVER_REMOVED: Final = frozenset((b"content-length", b"host"))  # A client may name them in Connection

DIRECTIVE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+)(?:=(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,;\"]*)))?")


def members(fields: Iterable[tuple[str, str]], name: str) -> list[str]:
    """Return the values of each field of that name, in order."""
    return [value.strip() for field, value in fields if field.lower() == name]


def joined(fields: Iterable[tuple[str, str]], name: str) -> str | None:
    """Join the values of all fields of a name; None: there is no such field.

    An absent and an empty field differ (RFC 9111 section 4.1).
    """
    values = members(fields, name)
    return ", ".join(values) if values else None


def parse_seconds(text: str) -> int | None:
    """Parse a number of whole seconds, capped at `MAX_SECONDS`; None: invalid."""
    count = parse_digits(text)
    return None if count is None else min(count, MAX_SECONDS)


def parse_digits(text: str) -> int | None:
    """Parse a number of digits only; None: invalid. More than 18 digits return 10**18."""
    if not (text.isascii() and text.isdigit()):
        return None
    # Python rejects very long digit strings (4,300 by default), a peer can send them.
    return int(text) if len(text) <= 18 else 10**18


def directives(fields: Iterable[tuple[str, str]], name: str = "cache-control") -> Mapping[str, str]:
    """Parse a list of directives (RFC 9111 section 5.2): values by lower-case names, ``""`` without a value.

    If a directive is repeated, the smaller number counts, and an invalid value counts as the smallest:
    unclear freshness is taken as less freshness (RFC 9111 section 4.2.1).
    """
    values: dict[str, str] = {}
    for match in DIRECTIVE.finditer(joined(fields, name) or ""):
        directive, quoted, bare = match.group(1).lower(), match.group(2), match.group(3)
        value = quoted if quoted is not None else bare or ""
        values[directive] = (
            min(values[directive], value, key=lambda text: parse_seconds(text) or 0)
            if directive in values
            else value
        )
    return values


def date_field_s(fields: Iterable[tuple[str, str]], name: str) -> float | None:
    """Return the date in a field as seconds since 1970; None: absent or invalid."""
    values = members(fields, name)
    return parse_date_s(values[0]) if values else None


def parse_date_s(text: str) -> float | None:
    """Parse an HTTP date as seconds since 1970; None: invalid."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def age_s(fields: Iterable[tuple[str, str]]) -> int:
    """Return the declared age of a response: the first of several numbers, else 0 (RFC 9111 section 5.1)."""
    first = (joined(fields, "age") or "").partition(",")[0]
    return parse_seconds(first.strip()) or 0


def retry_after_s(fields: Iterable[tuple[str, str]], wall_s: float) -> float | None:
    """Return the seconds that Retry-After requests, 0 for a past date; None: absent or invalid.

    A date is compared with the response's own Date, so the two clocks need not agree.
    """
    pairs = tuple(fields)
    values = members(pairs, "retry-after")
    if not values:
        return None
    count = parse_seconds(values[0])
    if count is not None:
        return float(count)
    then, sent = parse_date_s(values[0]), date_field_s(pairs, "date")
    if then is None:
        return None
    return max(0.0, then - (wall_s if sent is None else sent))


def body_bytes(method: str, status: int, fields: Iterable[tuple[str, str]]) -> int | None:
    """Return the length of a response body in bytes; None: unknown before its end."""
    pairs = tuple(fields)
    if method == "HEAD" or status in NO_BODY:
        return 0
    if members(pairs, "transfer-encoding"):
        return None
    values = members(pairs, "content-length")
    return parse_digits(values[0]) if values else None


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the fields that a proxy forwards: not for one connection alone. Names are in lower case."""
    pairs, removed = list(headers), HOP_BY_HOP
    for name, value in pairs:
        if name == b"connection":
            removed |= {token.strip().lower() for token in value.split(b",")} - NEVER_REMOVED
    return [pair for pair in pairs if pair[0] not in removed]


def without(headers: Iterable[tuple[bytes, bytes]], *names: bytes) -> list[tuple[bytes, bytes]]:
    """Return the fields of all other names."""
    return [pair for pair in headers if pair[0] not in names]


def is_forwarding(name: bytes) -> bool:
    """Whether proxies write a field of this name to report the client or its target."""
    return name.startswith(b"x-forwarded-") or name in {b"forwarded", b"x-real-ip"}


# Names, in lower case, of fields that do not identify a user. A user can be identified by a field of any
# name: ``Authorization``, ``Cookie``, ``X-Api-Key`` or a custom one. So every field that is not listed makes
# a request private. Not listed, though similar: ``Forwarded`` and ``X-Forwarded-*`` in general, since some
# name a user (``X-Forwarded-User``) or a certificate (``X-Forwarded-Client-Cert``), and ``baggage``, which
# may carry anything.
NON_IDENTIFYING: Final = re.compile(
    r"""
    # Encoding and form of the response; the wanted part of it, or a condition (only complete responses with
    # status 200 are stored, and they satisfy all of these).
    accept(-(charset|datetime|encoding|language))?
    | range | if-(match|modified-since|none-match|range|unmodified-since)
    # The message and the connection, hop by hop.
    | cache-control | cdn-loop | connection | content-(encoding|language|length|type) | date | expect | host
    | http2-settings | keep-alive | max-forwards | pragma | priority | proxy-connection | te | trailer
    | transfer-encoding | upgrade | via
    # The client program and the calling page; scripts cannot set fields that begin with sec-.
    | device-memory | dnt | downlink | dpr | ect | origin | purpose | referer | rtt | save-data | sec-gpc
    | sec-purpose | sec-(ch|fetch)-.* | upgrade-insecure-requests | user-agent | viewport-width | width
    # The address of the client: a dependency with responses per address needs a key.
    | cf-(connecting-ip|ipcountry|visitor) | true-client-ip | x-(client|cluster-client|real)-ip
    | x-envoy-(external-address|internal) | x-(original-)?forwarded-for
    # Traces, and the path of the request through proxies.
    | b3 | cf-ray | request-id | sentry-trace | traceparent | tracestate | uber-trace-id | x-amzn-trace-id
    | x-b3-(flags|parentspanid|sampled|spanid|traceid) | x-(cloud-trace-context|correlation-id|trace-id)
    | x-envoy-(attempt-count|expected-rq-timeout-ms) | x-forwarded-server | x-request-(id|start)
    """,
    re.VERBOSE,
)

# Fields that are a part of the address, like the URL, since apps build links from them. Without them in the
# key, one request with a forged host could poison the links of all others.
ADDRESSING: Final = re.compile(r"x-forwarded-(host|port|prefix|proto|scheme|ssl)|x-scheme")


def is_private(headers: Pairs) -> bool:
    """Whether a field of the request, of a name in any case, may identify the user."""
    names = (name.lower() for name, _ in headers)
    return not all(NON_IDENTIFYING.fullmatch(name) or ADDRESSING.fullmatch(name) for name in names)


def addressing_fields(headers: Pairs) -> Pairs:
    """Return the addressing fields of a request, with names in any case, sorted."""
    fields = ((name.lower(), value) for name, value in headers)
    return tuple(sorted(pair for pair in fields if ADDRESSING.fullmatch(pair[0])))
