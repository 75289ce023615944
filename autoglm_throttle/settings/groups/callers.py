"""Settings of callers, of the limits of single users, and of responses."""

import ipaddress
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from limits import parse_many
from pydantic import SecretStr

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FieldType, FieldTypeError, choice, listed, number, word
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.types import UNITS_AT_MOST, Priority, UserLimit

SECRET_BYTES: Final = 16  # minimum length of a secret: 128 bits, out of reach of guessing
PATH_CHARACTERS: Final = 1000
UNIX: Final = "unix"
PRIORITY_HEADER: Final = "x-priority"  # default header of a priority, for clients as well
# IPv4 inside IPv6: dual-stack servers report IPv4 peers as ::ffff:a.b.c.d.
_MAPPED: Final = ipaddress.ip_network("::ffff:0:0/96")


class HeaderTrust(StrEnum):
    """How far a client's priority header is trusted."""

    LOWER = "lower"
    PROXY = "proxy"
    ANY = "any"
    OFF = "off"


class HeaderStyle(StrEnum):
    """Rate limit headers in responses."""

    AUTO = "auto"
    IETF = "ietf"
    LEGACY = "legacy"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    NONE = "none"


class ErrorStyle(StrEnum):
    """Format of the bodies of rejections."""

    AUTO = "auto"
    PROBLEM = "problem"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    JSONRPC = "jsonrpc"


# RFC 9110, 5.6.2: the characters of a header name; in lower case, as in ASGI.
HEADER_NAME: Final = word(
    r"[!#$%&'*+.^_`|~0-9a-z-]{1,64}", "a header name of letters, digits and -", "x-priority", lower=True
)


def _identity(raw: object) -> str:
    """Parse the source of an identity; a callable is resolved later, at its import."""
    text = f.text_of(raw)
    head, colon, tail = text.partition(":")
    if not colon and text.lower() in {"address", "bearer"}:
        return text.lower()
    if colon and head.lower() == "header":
        return f"header:{HEADER_NAME.parse(tail)}"
    if not colon or not all(part.isidentifier() for part in (*head.split("."), *tail.split("."))):
        raise FieldTypeError
    return text


def _proxy(raw: object) -> str:
    """Parse an address, a network or ``unix``; IPv4 inside IPv6 becomes IPv4."""
    text = f.text_of(raw).lower()
    if text == "*":
        raise FieldTypeError("name the proxies: a trusted peer can take any identity")
    return text if text == UNIX else _network(text)


def _network(text: str) -> str:
    is_address = "/" not in text
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise FieldTypeError("not an address" if is_address else "not a network") from None
    if is_address:
        address = network.network_address
        return str(getattr(address, "ipv4_mapped", None) or address)
    if network.version == 6 and network.prefixlen > 0 and network.overlaps(_MAPPED):
        if network.prefixlen < _MAPPED.prefixlen:
            raise FieldTypeError("for peers that have an IPv4 address write the IPv4 network")
        mapped = ipaddress.IPv6Address(text.partition("/")[0]).ipv4_mapped
        return _network(f"{mapped}/{network.prefixlen - _MAPPED.prefixlen}")
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise FieldTypeError(f"{error}; write {network} or {text.partition('/')[0]}") from None


def _path(raw: object) -> str:
    path = f.text_of(raw)
    if "*" in path:
        raise FieldTypeError("no wildcard, because /health* would also exempt /healthcare; list each path")
    if not path.startswith("/"):
        raise FieldTypeError("must start with /")
    if len(path) > PATH_CHARACTERS or not path.isprintable() or set(path) & set(" ,?#"):
        raise FieldTypeError("a path has no blank, comma, query or control character")
    return path


def _secret(raw: object) -> SecretStr:
    """Accept a text that is long enough, with its blanks."""
    text = f.secret_text(raw)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise FieldTypeError("it is not UTF-8") from None
    if size < SECRET_BYTES:
        raise FieldTypeError(f"this one has {size}; for example {_EXAMPLE_KEY}")
    return SecretStr(text)


_EXAMPLE_KEY: Final = "the output of: openssl rand -hex 32"
IDENTITY: Final = FieldType("address, bearer, header:NAME or module:callable", "header:x-api-key", _identity)
PROXY: Final = FieldType(f"addresses, networks such as 10.0.0.0/8, or the word {UNIX}", "10.0.0.0/8", _proxy)
REQUEST_PATH: Final = FieldType("exact paths that start with /", "/health", _path)
SECRET: Final = f.secret(f"a secret of at least {SECRET_BYTES} bytes", _EXAMPLE_KEY, _secret)


class CallerSettings(Group):
    """Settings of callers: identity, priority, exempt paths."""

    environment: ClassVar[str] = (
        "IDENTITY* KEY_SECRET* TRUSTED_PROXIES* PRIORITY_DEFAULT* PRIORITY_HEADER PRIORITY_HEADER_TRUST "
        "DEADLINE_HEADER EXEMPT_PATHS*"
    )

    identity: Annotated[str, IDENTITY] = "address"
    """How callers are identified."""
    key_secret: Annotated[SecretStr, SECRET] | None = None
    """Key of the hash that identifies a caller, the same for all processes; not set: each process draws a
    random key, or with a shared store uses a fixed, publicly known key."""
    trusted_proxies: Annotated[tuple[str, ...], listed(PROXY)] = ()
    """Peers from which X-Forwarded-For is trusted; not set: no header is read."""
    priority_default: Annotated[Priority, f.PRIORITY] = Priority.MID
    """The priority of a request that states none."""
    priority_header: Annotated[str, HEADER_NAME] = PRIORITY_HEADER
    """The header in which a client states a priority. [convention]"""
    priority_header_trust: Annotated[HeaderTrust, choice(HeaderTrust)] = HeaderTrust.LOWER
    """lower: it may only lower; proxy: a trusted proxy may raise; any: everyone may; off: not read."""
    deadline_header: Annotated[str, HEADER_NAME] | None = None
    """A header in which a client states how soon it needs the answer: seconds, 1.5, or 800ms; it may shorten
    the objective, never lengthen it. Not set: none is read."""
    exempt_paths: Annotated[tuple[str, ...], listed(REQUEST_PATH)] = (
        *("/health", "/healthz", "/livez", "/readyz", "/metrics"),
    )
    """Paths that are never charged nor rejected, compared as received. A value replaces the whole list.
    [convention]"""
    ipv6_prefix: Annotated[int, f.whole(32, 128, "bits")] = 64
    """IPv6 callers with the same first bits are one caller. [a subscriber usually holds a /64]"""


class ResponseSettings(Group):
    """Settings of responses."""

    environment: ClassVar[str] = "HEADERS"

    headers: Annotated[HeaderStyle, choice(HeaderStyle)] = HeaderStyle.AUTO
    """RateLimit headers of draft-ietf-httpapi-ratelimit-headers-11 (ietf), those and X-RateLimit (legacy),
    those of OpenAI or Anthropic, or none; auto: those of the format of errors."""
    errors: Annotated[ErrorStyle, choice(ErrorStyle)] = ErrorStyle.AUTO
    """Format of a rejection's body: problem (RFC 9457), openai, anthropic, jsonrpc; auto: anthropic below
    /v1/messages, openai below any other /v1/, jsonrpc for a path that ends with /mcp, else problem."""
    retry_after_max_s: Annotated[float, number(1, 31_536_000, "s")] = 120.0
    """Longest Retry-After that is sent. [client SDKs give up above 120 s]"""
    retry_jitter: Annotated[float, number(0, 1, "share")] = 0.1
    """Share by which Retry-After is lengthened at random, so that rejected callers do not return together."""


Limits = tuple[UserLimit, ...]

EXAMPLE: Final = "100/minute;5/second"
LIMITS_AT_MOST: Final = 4  # every request checks all of its user's limits: bounds the work per request
WINDOW_AT_MOST_S: Final = 366 * 86_400  # longer windows need a database, not the memory of a process
TEXT_AT_MOST: Final = 200  # characters; four limits need fewer than 120
_SHORT: Final = {
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "sec": "second",
    "min": "minute",
    "hr": "hour",
}
_NAMED_S: Final = {86_400: "day", 3600: "hour", 60: "minute", 1: "second"}
_NO_WINDOW: Final = r"(?i)(?:/|per)\s*0+\s*[a-z]"


def parse_user_limits(text: str) -> tuple[UserLimit, ...]:
    """Parse one to four limits in the notation of ``limits``, with short units: ``1000/s;10 per 2 second``.

    Raises:
        ValueError: not the notation, a limit of 0 or above `UNITS_AT_MOST`, more than four limits,
            two limits with one window, a window above a year. The text names the problem and an example.
    """
    if len(text) > TEXT_AT_MOST:
        raise FieldTypeError(f"longer than {TEXT_AT_MOST} characters, for example {EXAMPLE}")
    long_form = re.sub(r"[A-Za-z]+", lambda word: _SHORT.get(word[0].lower(), word[0]), text.strip())
    try:
        items = parse_many(long_form)
    except ValueError:
        reason = f"for example {EXAMPLE}; whole numbers only: say 30/minute, not 0.5/second"
        raise FieldTypeError(reason) from None
    # The parser of `limits` reads 5/0 second as 5/second.
    if re.search(_NO_WINDOW, long_form):
        raise FieldTypeError(f"a window of 0 does not exist, for example {EXAMPLE}")
    return _checked((item.amount, item.get_expiry()) for item in items)


def user_limits_text(limits: tuple[UserLimit, ...]) -> str:
    """Format limits in the notation that ``parse_user_limits`` reads."""
    return ";".join(f"{limit.limit}/{_window_text(limit.window_s)}" for limit in limits)


def _checked(pairs: Iterable[tuple[int, int]]) -> tuple[UserLimit, ...]:
    limits = tuple(UserLimit(f"user-{window_s}s", limit, window_s) for limit, window_s in pairs)
    windows = [limit.window_s for limit in limits]
    if not 1 <= len(limits) <= LIMITS_AT_MOST:
        raise FieldTypeError(f"one to {LIMITS_AT_MOST} limits, not {len(limits)}")
    if any(not 1 <= limit.limit <= UNITS_AT_MOST for limit in limits):
        raise FieldTypeError(f"a limit is a whole number from 1 to {UNITS_AT_MOST}, for example {EXAMPLE}")
    if any(not 1 <= window_s <= WINDOW_AT_MOST_S for window_s in windows):
        raise FieldTypeError(f"a window is 1 second to {WINDOW_AT_MOST_S // 86_400} days long")
    if len(set(windows)) < len(windows):
        raise FieldTypeError("two limits have one window; keep the smaller one")
    return limits


def _window_text(window_s: int) -> str:
    unit_s, unit = next(pair for pair in _NAMED_S.items() if window_s % pair[0] == 0)
    return f"{window_s // unit_s} {unit}".removeprefix("1 ")


def _user_limits(raw: object) -> tuple[UserLimit, ...]:
    """Parse the notation, ``off``, or limits made in code, renamed to their standard names."""
    if isinstance(raw, str):
        return () if raw.strip().lower() == "off" else parse_user_limits(raw)
    if not isinstance(raw, (tuple, list)) or not all(isinstance(limit, UserLimit) for limit in raw):
        raise FieldTypeError
    if not all(type(number) is int for limit in raw for number in (limit.limit, limit.window_s)):
        raise FieldTypeError("limit and window are whole numbers")
    return _checked((limit.limit, limit.window_s) for limit in raw) if raw else ()


USER_LIMITS: Final = FieldType(
    "one to four limits in the notation of the limits package, or off",
    EXAMPLE,
    _user_limits,
    text=lambda limits: user_limits_text(limits) or "off",
)


class UserSettings(Group):
    """Settings of the limits of single users."""

    environment: ClassVar[str] = (
        "USER_LIMIT* USER_LIMIT_HIGH USER_LIMIT_MID USER_LIMIT_LOW CONCURRENCY_PER_USER MAX_USERS"
    )

    user_limit: Annotated[Limits, USER_LIMITS] = ()
    """Limit of one user; off until set, because behind an unknown proxy all users share one address."""
    user_limit_high: Annotated[Limits, USER_LIMITS] | None = None
    """Replaces USER_LIMIT for requests of priority high."""
    user_limit_mid: Annotated[Limits, USER_LIMITS] | None = None
    """Replaces USER_LIMIT for requests of priority mid."""
    user_limit_low: Annotated[Limits, USER_LIMITS] | None = None
    """Replaces USER_LIMIT for requests of priority low."""
    concurrency_per_user: Annotated[int, f.whole(0, 1000, "requests")] = 0
    """Requests of one user that may be in progress at once, queued ones included; 0: any number."""
    max_users: Annotated[int, f.whole(100, 10_000_000, "users")] = 100_000
    """Maximum of users tracked at once; above it idle users are evicted first, exhausted users never."""
    address_factor: Annotated[float, number(1, 1_000_000, "x user limit")] = 10.0
    """Limit of one address with unverified keys, as a multiple of the user limit, so that inventing keys
    gains nothing."""

    @property
    def by_priority(self) -> tuple[Limits, ...]:
        """The user limits for high, mid and low; an empty tuple means none."""
        own = (self.user_limit_high, self.user_limit_mid, self.user_limit_low)
        return tuple(self.user_limit if limits is None else limits for limits in own)
