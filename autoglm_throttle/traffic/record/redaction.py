"""What a recording may hold: an allow-list, applied before anything is kept.

Of a request remain its method, its path, the shape of its query, and the header fields that were allowed
by name. Everything else, whatever it may be, is not written: a list of what is secret is never complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes

from autoglm_throttle.model import Priority
from autoglm_throttle.settings.record_fields import NEVER_RECORDED, masks, says_who
from autoglm_throttle.traffic.errors import TrafficError

ALLOWED: Final = ("content-type", "content-length", "accept", "user-agent")
"""Header fields that are kept besides the priority."""

REMEMBERED: Final = 500
"""Names of fields, and values of each that is kept, that are not looked at again."""

REMEMBERED_BYTES: Final = 256
"""A longer one is looked at each time, so that nobody fills the memory."""

MASK: Final = "*"
"""What stands for everything that was left out."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_METHOD = re.compile(r"[A-Za-z-]{1,20}")
_UNSAFE = re.compile(r"[^\t\x20-\x7e]")
_LOOSE = re.compile(rb"[^\x21-\x7e]")
_PLAIN = re.compile(rb"/(?!/)[^#;@]*")
"""A path that needs no second look."""

_AUTHORITY = re.compile(rb"\A(?:[A-Za-z][A-Za-z0-9+.-]*:[/\\]{2}[^/\\]*|//[^/]*@[^/]*)")
"""What stands before the path in a URL; most servers hand on what the client wrote."""

_USER = re.compile(rb"([/\\]{2})[^/\\]*@")
"""The user in a URL that stands within the path."""

_PARAMETERS = re.compile(rb";[^/]*")
"""Of a segment: ``;jsessionid=`` stands there."""

_HOST = re.compile(rb"\*|[A-Za-z0-9._:\[\]-]+:\d{1,5}")
"""What a target may be that is no path: ``*``, or a host and its port."""

_PARTS = re.compile(rb"[&;]")
"""What ends a query parameter; some servers still take the semicolon for one."""


T = TypeVar("T")


class Redaction:
    """The allow-list of one recording.

    Args:
        allow_headers: header fields to keep besides ``ALLOWED``.
        keep_query: query parameters to keep, name and value; of all others only that they were there.
        mask_paths: patterns as routes have them: ``/users/{id}`` masks the second segment of every path
            that begins so, and ``*`` as the last segment all that follows.
        priority_header: where the priority stands; only a known one is kept as it is.
        identity_headers: fields that cannot be allowed besides those that `says_who` names.

    Raises:
        TrafficError: a field that must not be allowed, or what is no name or no pattern.
    """

    def __init__(
        self,
        *,
        allow_headers: Iterable[str] = (),
        keep_query: Iterable[str] = (),
        mask_paths: Iterable[str] = (),
        priority_header: str = "x-priority",
        identity_headers: Iterable[str] = (),
    ) -> None:
        wanted = [*ALLOWED, priority_header, *allow_headers]
        names = tuple(dict.fromkeys(name.strip().lower() for name in wanted))
        own = priority_header.strip().lower()
        _check_headers(names, own, NEVER_RECORDED.union(name.strip().lower() for name in identity_headers))
        self.headers: tuple[str, ...] = names
        """Names of the header fields that are kept."""
        self.query: tuple[str, ...] = tuple(dict.fromkeys(keep_query))
        """Names of the query parameters that are kept."""
        self.paths: tuple[str, ...] = tuple(dict.fromkeys(mask_paths))
        """Patterns of the paths that are masked."""
        self._priority = own
        self._known = _Remembered(self._pairs)
        self._query = frozenset(self.query)
        self._patterns = [_segments_of(pattern) for pattern in self.paths]

    def fields(self, headers: Iterable[Sequence[bytes]]) -> list[tuple[str, str]]:
        """The header fields that may be kept, in their order.

        Args:
            headers: pairs of name and value, as ASGI has them.
        """
        known = self._known
        return [pairs[value] for name, value in headers if (pairs := known[name]) is not None]

    def leave_out(self, name: str) -> None:
        """From now on a header field is not kept, though it was allowed: a throttle knows callers by it."""
        kept = name.strip().lower()
        if kept in self.headers:
            self.headers = tuple(other for other in self.headers if other != kept)
            self._known.clear()

    def method(self, method: str) -> str:
        """The method as it may be kept: one of letters, as all that are registered."""
        return method if method in _METHODS or _METHOD.fullmatch(method) else MASK

    def target(self, path: str, raw_path: bytes = b"", query: bytes = b"", root_path: str = "") -> str:
        """Path and query as they may be kept.

        Args:
            path: decoded, as ASGI has it.
            raw_path: as it was sent, without the query; empty where the server does not tell.
            query: as it was sent.
            root_path: where the app is mounted; patterns may begin before or after it.
        """
        if b"?" in raw_path:  # some servers leave the query in it
            raw_path = raw_path.partition(b"?")[0]
        if not raw_path:
            raw_path = _quoted(path.partition("#")[0]).encode("ascii")
        if not _PLAIN.fullmatch(raw_path):
            raw_path = _origin_form(raw_path, root_path)
            path = unquote_to_bytes(raw_path).decode("utf-8", "replace")
        kept = self._masked(path, raw_path, root_path) if self._patterns else None
        if kept is None:
            kept = _printable(raw_path)
        return f"{kept or '/'}?{self._query_text(query)}" if query else kept or "/"

    def target_of(self, target: str) -> str:
        """The same for a request target as it stands in another file."""
        path, _, query = target.partition("#")[0].partition("?")
        raw_path, raw_query = (part.encode("utf-8", "surrogatepass") for part in (path, query))
        return self.target(unquote(path), raw_path, raw_query)

    def described(self) -> dict[str, Any]:
        """For the first line of the file."""
        return {"headers": list(self.headers), "query": list(self.query), "paths": list(self.paths)}

    def _pairs(self, name: bytes) -> _Remembered[tuple[str, str]] | None:
        """What makes the pairs of a header field; None for one that is not kept."""
        kept = name.decode("latin-1").lower()
        return _Remembered(partial(self._pair, kept)) if kept in self.headers else None

    def _pair(self, name: str, value: bytes) -> tuple[str, str]:
        text = value.decode("latin-1")
        if not (text.isascii() and text.isprintable()):
            text = _UNSAFE.sub("?", text)
        return (name, MASK if name == self._priority and not Priority.knows(text) else text)

    def _query_text(self, query: bytes) -> str:
        return "&".join(map(self._parameter, _PARTS.split(query)))

    def _parameter(self, part: bytes) -> str:
        name, equals, _ = part.partition(b"=")
        if self._query and unquote_to_bytes(name).decode("latin-1") in self._query:
            return _printable(part)
        return f"{MASK}={MASK}" if equals else MASK if name else ""

    def _masked(self, path: str, raw_path: bytes, root_path: str) -> str | None:
        """The path with its secret segments masked; None if no pattern fits."""
        roots = {"", root_path.rstrip("/")} if root_path and path.startswith(root_path) else {""}
        segments = [part for part in path.split("/") if part]
        hidden: set[int] = set()
        cut = len(segments)
        for root in roots:
            skipped = len([part for part in root.split("/") if part])
            for pattern in self._patterns:
                places, rest = _fit(pattern, segments[skipped:])
                hidden.update(place + skipped for place in places)
                cut = cut if rest is None else min(cut, rest + skipped)
        if hidden and b"%2f" in raw_path.lower():  # which segment is which depends on who decodes it
            cut = min(cut, *hidden)
        if not hidden and cut == len(segments):
            return None
        kept = [MASK if place in hidden else _quoted(part) for place, part in enumerate(segments[:cut])]
        slash = "/" if cut == len(segments) and path.endswith("/") else ""
        return "/" + "/".join([*kept, MASK] if cut < len(segments) else kept) + slash


class _Remembered(dict[bytes, T]):
    """What was made of names and values before: clients send the same ones again and again."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[bytes], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: bytes) -> T:
        if len(self) >= REMEMBERED:
            self.clear()
        made = self._make(key)
        if len(key) <= REMEMBERED_BYTES:
            self[key] = made
        return made


_SAFE: Final = "/!$&'()*+,;=:@~-._"


def _quoted(segment: str) -> str:
    return quote(segment.encode("utf-8", "surrogatepass"), safe=_SAFE)


def _printable(raw: bytes) -> str:
    """The same bytes, with those that would break a request line percent-encoded."""
    text = raw.decode("latin-1")
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    return _LOOSE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")


def _origin_form(raw_path: bytes, root_path: str) -> bytes:
    """A path without scheme, host and user, fragment, and parameters of its segments."""
    root = root_path.rstrip("/").encode("utf-8", "surrogatepass")
    root = root if raw_path.startswith(root) else b""
    rest = _AUTHORITY.sub(b"", raw_path[len(root) :].partition(b"#")[0])
    if rest and not rest.startswith(b"/"):
        return root + (rest if _HOST.fullmatch(rest) else MASK.encode())
    return root + _PARAMETERS.sub(b";" + MASK.encode(), _USER.sub(rb"\1", rest))


def _fit(pattern: list[str], segments: list[str]) -> tuple[set[int], int | None]:
    """Places to mask and where all the rest begins, of a path that begins as the pattern says.

    Letters of either case fit: masking too much is the lesser fault.
    """
    rest = pattern[-1] == "*"
    fixed = pattern[:-1] if rest else pattern
    if len(segments) < len(fixed):
        return set(), None
    hidden = set()
    for place, (wanted, found) in enumerate(zip(fixed, segments, strict=False)):
        if wanted.startswith("{"):
            hidden.add(place)
        elif wanted.casefold() != found.partition(";")[0].casefold():
            return set(), None
    return hidden, len(fixed) if rest else None


def _segments_of(pattern: str) -> list[str]:
    if not masks(pattern):
        raise TrafficError(f"{pattern!a} masks nothing; write /users/{{id}} or /reset/*")
    return pattern.strip("/").split("/")


def _check_headers(names: Iterable[str], priority: str, never: frozenset[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise TrafficError(f"{name!a} is no header name")
        if name in never or (name != priority and says_who(name)):
            raise TrafficError(f"the header {name} says who asks and can never be recorded")
