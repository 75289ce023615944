"""Redaction of a recording, before anything is stored: an allow-list, since no list of secrets is complete.

A request keeps its method, its path, the names and shape of its query, and the allowed header fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote, unquote_to_bytes

from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.settings.groups.observe import NEVER_RECORDED, identifies_caller, masks
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.types import Priority

# Header fields that are stored besides the priority.
ALLOWED: Final = ("content-type", "content-length", "accept", "user-agent")

CACHE_ENTRIES: Final = 500  # Cached field names, and cached values of each stored field
CACHE_KEY_BYTES: Final = 256  # A longer one is not cached, so that clients cannot fill the memory
MASK: Final = "*"  # Replaces everything that was removed

HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_METHOD = re.compile(r"[A-Za-z-]{1,20}")
_UNSAFE = re.compile(r"[^\t\x20-\x7e]")
_LOOSE = re.compile(rb"[^\x21-\x7e]")
_PLAIN = re.compile(rb"/(?!/)[^#;@]*")  # A path that needs no further checks

# Scheme and authority before the path in a URL; most servers forward the target as the client sent it.
_AUTHORITY = re.compile(rb"\A(?:[A-Za-z][A-Za-z0-9+.-]*:[/\\]{2}[^/\\]*|//[^/]*@[^/]*)")

_USER = re.compile(rb"([/\\]{2})[^/\\]*@")  # User in a URL that is embedded in the path
_PARAMETERS = re.compile(rb";[^/]*")  # Parameters of a path segment, such as ``;jsessionid=``

# Valid target without a path: ``*``, or a host and its port.
_HOST = re.compile(rb"\*|[A-Za-z0-9._:\[\]-]+:\d{1,5}")

# The same of a whole target: authorities with a user, as at the start of a URL without a scheme.
_USERS = re.compile(r"(?:/{2,}[^/?#]*@[^/?#]*)+")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*([^#]*)(?:#.*)?", re.DOTALL)

_PARTS = re.compile(rb"[&;]")  # Separators of query parameters; some servers still accept the semicolon


T = TypeVar("T")


class Redaction:
    """The allow-list of one recording.

    Args:
        allow_headers: header fields to store besides ``ALLOWED``.
        keep_query: query parameters to store, name and value; of all others only their presence.
        mask_paths: patterns as routes have them: ``/users/{id}`` masks the second segment of every path
            that begins so, and ``*`` as the last segment all that follows.
        priority_header: header field of the priority; only a known priority is stored unchanged.
        identity_headers: fields that cannot be allowed, besides those named by `identifies_caller`.

    Raises:
        TrafficError: a forbidden field, an invalid name or an invalid pattern.
    """

    def __init__(
        self,
        *,
        allow_headers: Iterable[str] = (),
        keep_query: Iterable[str] = (),
        mask_paths: Iterable[str] = (),
        priority_header: str = PRIORITY_HEADER,
        identity_headers: Iterable[str] = (),
    ) -> None:
        wanted = [*ALLOWED, priority_header, *allow_headers]
        names = tuple(dict.fromkeys(name.strip().lower() for name in wanted))
        own = priority_header.strip().lower()
        _check_headers(names, own, NEVER_RECORDED.union(name.strip().lower() for name in identity_headers))
        self.headers: tuple[str, ...] = names  # Names of the header fields that are stored
        self.query: tuple[str, ...] = tuple(dict.fromkeys(keep_query))  # Query parameters that are stored
        self.paths: tuple[str, ...] = tuple(dict.fromkeys(mask_paths))  # Patterns of masked paths
        self._priority = own
        # Stored values by field name; bounded.
        self.cache: RedactionCache[RedactionCache[tuple[str, str]] | None] = RedactionCache(self._pairs)
        self._query = frozenset(self.query)
        self._patterns = [_segments_of(pattern) for pattern in self.paths]

    def fields(self, headers: Iterable[Sequence[bytes]]) -> list[tuple[str, str]]:
        """Return the header fields of an ASGI scope that may be stored, in their order."""
        cache = self.cache
        return [pairs[value] for name, value in headers if (pairs := cache[name]) is not None]

    def disallow(self, name: str) -> None:
        """Disallow a header field from now on: a throttle identifies callers by it."""
        field_name = name.strip().lower()
        if field_name in self.headers:
            self.headers = tuple(other for other in self.headers if other != field_name)
            self.cache.clear()

    def method(self, method: str) -> str:
        """Return a method made of letters, as all registered ones are, or the mask."""
        return method if method in _METHODS or _METHOD.fullmatch(method) else MASK

    def target(self, path: str, raw_path: bytes = b"", query: bytes = b"", root_path: str = "") -> str:
        """Return path and query in their redacted form, from the values of an ASGI scope.

        An empty ``raw_path`` is built from ``path``. Patterns may begin before or after the ``root_path``.
        """
        if b"?" in raw_path:  # some servers leave the query in it
            raw_path = raw_path.partition(b"?")[0]
        if not raw_path:
            raw_path = _percent_encode(path.partition("#")[0]).encode("ascii")
        if not _PLAIN.fullmatch(raw_path):
            raw_path = _origin_form(raw_path, root_path)
            path = unquote_to_bytes(raw_path).decode("utf-8", "replace")
        masked = self._masked(path, raw_path, root_path) if self._patterns else None
        if masked is None:
            masked = _printable(raw_path)
        return f"{masked or '/'}?{self._query_text(query)}" if query else masked or "/"

    def target_of(self, target: str) -> str:
        """Redact a request target of another file."""
        path, _, query = target.partition("#")[0].partition("?")
        raw_path, raw_query = (part.encode("utf-8", "surrogatepass") for part in (path, query))
        return self.target(unquote(path), raw_path, raw_query)

    def describe(self) -> dict[str, Any]:
        """Return the redaction for the first line of the file."""
        return {"headers": list(self.headers), "query": list(self.query), "paths": list(self.paths)}

    def _pairs(self, name: bytes) -> RedactionCache[tuple[str, str]] | None:
        """Return the cache of pairs of a header field; None for a field that is not stored."""
        field_name = name.decode("latin-1").lower()
        return RedactionCache(partial(self._pair, field_name)) if field_name in self.headers else None

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
        """Return the path with its secret segments masked; None if no pattern matches."""
        roots = {"", root_path.rstrip("/")} if root_path and path.startswith(root_path) else {""}
        segments = [part for part in path.split("/") if part]
        hidden: set[int] = set()
        stop = len(segments)
        for root in roots:
            skipped = len([part for part in root.split("/") if part])
            for pattern in self._patterns:
                positions, rest = _match(pattern, segments[skipped:])
                hidden.update(position + skipped for position in positions)
                stop = stop if rest is None else min(stop, rest + skipped)
        if hidden and b"%2f" in raw_path.lower():  # which segment is which depends on who decodes it
            stop = min(stop, *hidden)
        if not hidden and stop == len(segments):
            return None
        shown = [
            MASK if position in hidden else _percent_encode(part)
            for position, part in enumerate(segments[:stop])
        ]
        slash = "/" if stop == len(segments) and path.endswith("/") else ""
        return "/" + "/".join([*shown, MASK] if stop < len(segments) else shown) + slash


class RedactionCache(dict[bytes, T]):
    """Cache of redacted names and values: clients repeat the same ones."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[bytes], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: bytes) -> T:
        if len(self) >= CACHE_ENTRIES:
            self.clear()
        made = self._make(key)
        if len(key) <= CACHE_KEY_BYTES:
            self[key] = made
        return made


_SAFE: Final = "/!$&'()*+,;=:@~-._"


def _percent_encode(segment: str) -> str:
    return quote(segment.encode("utf-8", "surrogatepass"), safe=_SAFE)


def _printable(raw: bytes) -> str:
    """Percent-encode the bytes that would break a request line."""
    text = raw.decode("latin-1")
    if text.isascii() and text.isprintable() and " " not in text:
        return text
    return _LOOSE.sub(lambda found: b"%%%02X" % found[0][0], raw).decode("ascii")


def _origin_form(raw_path: bytes, root_path: str) -> bytes:
    """Remove scheme, host, user, fragment, and segment parameters from a path."""
    root = root_path.rstrip("/").encode("utf-8", "surrogatepass")
    root = root if raw_path.startswith(root) else b""
    rest = _AUTHORITY.sub(b"", raw_path[len(root) :].partition(b"#")[0])
    if rest and not rest.startswith(b"/"):
        return root + (rest if _HOST.fullmatch(rest) else MASK.encode())
    return root + _PARAMETERS.sub(b";" + MASK.encode(), _USER.sub(rb"\1", rest))


def _match(pattern: list[str], segments: list[str]) -> tuple[set[int], int | None]:
    """Match a path against a pattern: positions to mask, and the start of the part to remove.

    The comparison ignores case: masking too much is the lesser fault.
    """
    rest = pattern[-1] == "*"
    fixed = pattern[:-1] if rest else pattern
    if len(segments) < len(fixed):
        return set(), None
    hidden = set()
    for position, (wanted, segment) in enumerate(zip(fixed, segments, strict=False)):
        if wanted.startswith("{"):
            hidden.add(position)
        elif wanted.casefold() != segment.partition(";")[0].casefold():
            return set(), None
    return hidden, len(fixed) if rest else None


def _segments_of(pattern: str) -> list[str]:
    if not masks(pattern):
        raise TrafficError(f"{pattern!a} masks nothing; write /users/{{id}} or /reset/*")
    return pattern.strip("/").split("/")


def _check_headers(names: Iterable[str], priority: str, never: frozenset[str]) -> None:
    for name in names:
        if not HEADER_NAME.fullmatch(name):
            raise TrafficError(f"{name!a} is no header name")
        if name in never or (name != priority and identifies_caller(name)):
            raise TrafficError(f"the header {name} identifies the caller and can never be recorded")


def target_of(url: str) -> str:
    """Return path and query of an absolute URL, or of a path.

    ``//name:password@host/path`` is a URL without a scheme; ``//path`` may be a path, and stays one.
    """
    match = _URL.fullmatch(url)
    rest = match[1] if match else url.partition("#")[0]
    begins = _USERS.match(rest)
    if begins:
        rest = rest[begins.end() :]
    if (match or begins) and not rest.startswith("/"):
        rest = f"/{rest}"
    if not rest.startswith("/"):
        raise TrafficError("neither an absolute URL nor a path")
    return rest
