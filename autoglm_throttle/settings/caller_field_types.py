"""Field types of callers: headers, identities, proxies, paths, the secret."""

from __future__ import annotations

import ipaddress
import re

from pydantic import SecretStr

from autoglm_throttle.settings.field_types import FieldType, FieldTypeError
from autoglm_throttle.settings.user_limits import (
    EXAMPLE,
    check_user_limits,
    parse_user_limits,
    user_limit,
    user_limits_text,
)
from autoglm_throttle.types import UserLimit

SECRET_BYTES = 16
"""Minimum length of a secret: 128 bits, out of reach of guessing."""

HEADER_CHARACTERS = 64
PATH_CHARACTERS = 1000

UNIX = "unix"

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110, 5.6.2: the characters of a header name."""


class HeaderName(FieldType[str]):
    """The name of a request header, stored in lower case as in ASGI."""

    allowed = "a header name of letters, digits and -"
    example = "x-priority"

    def parse(self, raw: object) -> str:
        """Parse a token of RFC 9110 of at most 64 characters."""
        name = raw.strip().lower() if isinstance(raw, str) else ""
        if not _TOKEN.fullmatch(name) or len(name) > HEADER_CHARACTERS:
            raise FieldTypeError
        return name


class IdentityType(FieldType[str]):
    """The source of a caller's identity. A callable is resolved later, at its import."""

    allowed = "address, bearer, header:NAME or module:callable"
    example = "header:x-api-key"
    _header = HeaderName()

    def parse(self, raw: object) -> str:
        """Parse one of the four; ``header:`` wins over a module of that name."""
        text = raw.strip() if isinstance(raw, str) else ""
        head, colon, tail = text.partition(":")
        if not colon and text.lower() in {"address", "bearer"}:
            return text.lower()
        if colon and head.lower() == "header":
            return f"header:{self._header.parse(tail)}"
        if not (colon and _dotted(head) and _dotted(tail)):
            raise FieldTypeError
        return text


class Proxy(FieldType[str]):
    """One peer that is trusted to name its client."""

    allowed = f"addresses, networks such as 10.0.0.0/8, or the word {UNIX}"
    example = "10.0.0.0/8"

    def parse(self, raw: object) -> str:
        """Parse an address, a CIDR or ``unix``; an IPv4 address inside IPv6 becomes IPv4."""
        text = raw.strip().lower() if isinstance(raw, str) else ""
        if text == UNIX:
            return text
        if text == "*":
            raise FieldTypeError("name the proxies: a trusted peer can take any identity")
        address, slash, _ = text.partition("/")
        if not slash:
            return _address(address)
        try:
            return str(ipaddress.ip_network(text))
        except ValueError as error:
            raise FieldTypeError(_network_hint(text, str(error))) from None


class RequestPath(FieldType[str]):
    """One exact path."""

    allowed = "exact paths that start with /"
    example = "/health"

    def parse(self, raw: object) -> str:
        """Parse a path without a wildcard."""
        path = raw.strip() if isinstance(raw, str) else ""
        if "*" in path:
            raise FieldTypeError(
                "no wildcard, because /health* would also exempt /healthcare; list each path"
            )
        if not path.startswith("/"):
            raise FieldTypeError("must start with /")
        if len(path) > PATH_CHARACTERS or not path.isprintable() or set(path) & set(" ,?#"):
            raise FieldTypeError("a path has no blank, comma, query or control character")
        return path


class Secret(FieldType[SecretStr]):
    """The key of the keyed hash; it is never shown."""

    allowed: str = f"a secret of at least {SECRET_BYTES} bytes"
    example = "the output of: openssl rand -hex 32"
    secret = True

    def parse(self, raw: object) -> SecretStr:
        """Accept a text that is long enough, with its blanks."""
        text = raw.get_secret_value() if isinstance(raw, SecretStr) else raw
        if not isinstance(text, str):
            raise FieldTypeError
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise FieldTypeError("it is not UTF-8") from None
        if size < SECRET_BYTES:
            raise FieldTypeError(f"this one has {size}; for example {self.example}")
        return SecretStr(text)

    def text(self, value: SecretStr) -> str:
        """Return the secret itself: callers that show settings must check ``secret`` first."""
        return value.get_secret_value()


class UserLimitsType(FieldType[tuple[UserLimit, ...]]):
    """The limits of one user; may be empty."""

    allowed = "one to four limits in the notation of the limits package, or off"
    example = EXAMPLE

    def parse(self, raw: object) -> tuple[UserLimit, ...]:
        """Parse the notation, ``off``, or limits made in code, renamed to their standard names."""
        if isinstance(raw, str):
            return () if raw.strip().lower() == "off" else parse_user_limits(raw)
        if not isinstance(raw, (tuple, list)) or not all(isinstance(limit, UserLimit) for limit in raw):
            raise FieldTypeError
        named = tuple(user_limit(limit.limit, limit.window_s) for limit in raw)
        return check_user_limits(named) if named else ()

    def text(self, value: tuple[UserLimit, ...]) -> str:
        """Format the notation, or ``off``."""
        return user_limits_text(value) or "off"


def _dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise FieldTypeError("not an address") from None
    # Dual-stack servers report IPv4 peers as ::ffff:a.b.c.d.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _network_hint(text: str, reason: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return "not a network"
    return f"{reason}; write {network} or {text.partition('/')[0]}"
