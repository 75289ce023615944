"""Parses the value of ``GPU``: the telemetry sources, and the URLs of scraped ones.

No text made here contains the password of a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from autoglm_throttle.settings.problems import masked_url, repr_for_user

SCRAPED: Final = ("dcgm", "prometheus", "vllm", "sglang")
"""Kinds that are read over HTTP."""

LOCAL: Final = ("auto", "nvml", "none")
"""Kinds without a URL or file."""

ENGINES: Final = frozenset({"vllm", "sglang"})
"""Sources that report the queue of an engine."""

KINDS: Final = (*LOCAL, *SCRAPED, "fake")

ALLOWED_ITEMS: Final = "auto, nvml, dcgm:URL, prometheus:URL, vllm:URL, sglang:URL, fake:FILE, or none alone"
"""Allowed items."""

_NEXT: Final = rf"(?i),(?=\s*(?:{'|'.join(KINDS)})\s*(?:[:,]|\Z))"
"""A comma before the next item; other commas belong to a URL or the name of a file."""

_AFTER: Final = {
    **dict.fromkeys(SCRAPED, "a URL, such as :http://127.0.0.1:8000"),
    "fake": "the name of a file, such as :trace.csv",
}

_PORTS: Final = {"http": 80, "https": 443}


class ScrapeUrl(NamedTuple):
    """The parts of a URL."""

    tls: bool
    host: str
    port: int
    path: str = ""
    """Path as it is sent; empty or ``/`` if the URL has none."""
    query: str = ""
    """Query as it is sent, without the question mark."""
    username: str | None = None
    password: str | None = None

    @property
    def place(self) -> str:
        """``host:port``, the only part that a name or a label may show."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        # Path and query may hold secrets as the password does.
        return f"ScrapeUrl({self.place})"


class GpuItem(NamedTuple):
    """One source."""

    kind: str
    url: ScrapeUrl | None = None
    """URL of a kind in ``SCRAPED``."""
    file: str = ""
    """File of ``fake``."""


def split_items(text: str) -> list[str]:
    """Split a list at the commas before a known kind; blanks around the items are dropped."""
    return [part.strip() for part in re.split(_NEXT, text)]


def parse_items(items: Sequence[str]) -> tuple[GpuItem, ...]:
    """Parse the items of a list.

    Args:
        items: each one of ``ALLOWED_ITEMS``.

    Returns:
        At least one source.

    Raises:
        ValueError: an item is wrong; the text lists all problems, without passwords.
    """
    read: list[GpuItem] = []
    faults: list[str] = []
    for text in items:
        try:
            item = _item(text)
        except ValueError as error:
            faults.append(f"{repr_for_user(shown_item(text))}: {error}")
            continue
        if _same(item) in map(_same, read):
            faults.append(f"{repr_for_user(shown_item(text))} is listed twice")
        read.append(item)
    if not faults:
        faults += _contradictions(read)
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(read)


def normal_item(text: str) -> str:
    """Normalize a valid item: kind in lower case, no blanks around its parts."""
    kind, colon, rest = text.partition(":")
    return kind.strip().lower() + colon + rest.strip()


def shown_item(text: str) -> str:
    """Format an item without its password."""
    kind, colon, rest = text.strip().partition(":")
    return kind + colon + (rest if kind.strip().lower() == "fake" else masked_url(rest))


def _item(text: str) -> GpuItem:
    kind, colon, rest = (part.strip() for part in text.partition(":"))
    kind = kind.lower()
    if kind == "fake" and rest and rest.isprintable():
        return GpuItem(kind, file=rest)
    if kind in SCRAPED and colon:
        return GpuItem(kind, url=_url(rest))
    if kind in LOCAL and not colon:
        return GpuItem(kind)
    if kind in KINDS:
        raise ValueError(f"after {kind} comes {_AFTER.get(kind, 'nothing')}")
    raise ValueError("not a known source")


def _contradictions(items: Sequence[GpuItem]) -> Iterable[str]:
    kinds = [item.kind for item in items]
    if not kinds:
        yield "no source is named; write none for no source"
    if "none" in kinds and len(kinds) > 1:
        yield "none cannot be joined with other sources"
    if "auto" in kinds and {"nvml", "fake"} & set(kinds):
        yield f"auto can be joined with {', '.join(SCRAPED)} only"


def _same(item: GpuItem) -> tuple[object, ...]:
    """Key that two items must not share: another login does not make another source."""
    url = item.url
    return (item.kind, item.file, url and (url.host, url.port, url.path.rstrip("/"), url.query))


def _url(text: str) -> ScrapeUrl:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(
            "its host or port cannot be read; special characters in a password are written %2F"
        ) from None
    # First, since the errors below may quote a part of the URL: an unencoded password ends up in these parts.
    if parts.fragment or "@" in parts.path + parts.query or not text.isprintable() or " " in text:
        raise ValueError("'/', '?', '#', '@' and blanks in a password or a path must be percent-encoded")
    if parts.scheme not in _PORTS:
        raise ValueError("a URL begins with http:// or https://")
    if not parts.hostname or port == 0:
        raise ValueError("a URL names a host, and a port that is not 0")
    return ScrapeUrl(
        tls=parts.scheme == "https",
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        path=quote(parts.path, safe="/%:!$&'()*+,;=~"),
        query=quote(parts.query, safe="/%:?!$&'()*+,;=~"),
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )
