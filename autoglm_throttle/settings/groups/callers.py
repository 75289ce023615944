"""Settings of callers and of responses: identity, priority, exempt paths, response headers."""

import ipaddress
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import SecretStr

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FieldType, FieldTypeError, choice, listed, number, word
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.types import Priority

SECRET_BYTES: Final = 16  # minimum length of a secret: 128 bits, out of reach of guessing
PATH_CHARACTERS: Final = 1000
UNIX: Final = "unix"
PRIORITY_HEADER: Final = "x-priority"  # default header of a priority, for clients as well
# IPv4 inside IPv6: dual-stack servers report IPv4 peers as ::ffff:a.b.c.d.
_MAPPED: Final = ipaddress.ip_network("::ffff:0:0/96")

HeaderTrustName = Literal["lower", "proxy", "any", "off"]
HeaderStyleName = Literal["auto", "ietf", "legacy", "none"]


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
    NONE = "none"


# RFC 9110, 5.6.2: the characters of a header name; in lower case, as in ASGI.
HEADER_NAME: Final = word(
    r"[!#$%&'*+.^_`|~0-9a-z-]{1,64}", "a header name of letters, digits and -", "x-priority", lower=True
)


def _identity(raw: object) -> str:
    """Parse the source of an identity; a callable is resolved later, at its import."""
    text = raw.strip() if isinstance(raw, str) else ""
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
    text = raw.strip().lower() if isinstance(raw, str) else ""
    if text == UNIX:
        return text
    if text == "*":
        raise FieldTypeError("name the proxies: a trusted peer can take any identity")
    if "/" not in text:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise FieldTypeError("not an address") from None
        return str(getattr(address, "ipv4_mapped", None) or address)
    return _network(text)


def _network(text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise FieldTypeError("not a network") from None
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
    path = raw.strip() if isinstance(raw, str) else ""
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

    environment: ClassVar[str] = "HEADERS RETRY_AFTER_MAX_S"

    headers: Annotated[HeaderStyle, choice(HeaderStyle)] = HeaderStyle.AUTO
    """RateLimit headers of draft-ietf-httpapi-ratelimit-headers-11 (ietf, auto), those and X-RateLimit
    (legacy), or none."""
    retry_after_max_s: Annotated[float, number(1, 31_536_000, "s")] = 120.0
    """Longest Retry-After that is sent. [client SDKs give up above 120 s]"""
    retry_jitter: Annotated[float, number(0, 1, "share")] = 0.1
    """Share by which Retry-After is lengthened at random, so that rejected callers do not return together."""
