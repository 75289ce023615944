"""What the setting ``GPU`` may name: the sources of telemetry, and the URLs of those that are scraped.

A password in a URL never shows in a text made here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from autoglm_throttle.settings.masked import masked_url
from autoglm_throttle.settings.problem import shown

SCRAPED: Final = ("dcgm", "prometheus", "vllm", "sglang")
"""Kinds that are read over HTTP."""

LOCAL: Final = ("auto", "nvml", "none")
"""Kinds that are one word."""

ENGINES: Final = frozenset({"vllm", "sglang"})
"""Sources that tell the queue of an engine."""

KINDS: Final = (*LOCAL, *SCRAPED, "fake")

FORMS: Final = "auto, nvml, dcgm:URL, prometheus:URL, vllm:URL, sglang:URL, fake:FILE, or none alone"
"""What may be written."""

_NEXT: Final = re.compile(rf",(?=\s*(?:{'|'.join(KINDS)})\s*(?:[:,]|\Z))", re.IGNORECASE)
"""A comma before the next item; others belong to a URL or the name of a file."""

_AFTER: Final = {
    **dict.fromkeys(SCRAPED, "a URL, such as :http://127.0.0.1:8000"),
    "fake": "the name of a file, such as :trace.csv",
}

_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ScrapeUrl:
    """A URL taken apart."""

    tls: bool
    host: str
    port: int
    path: str = ""
    """As it is sent; empty or ``/`` where none was named."""
    query: str = ""
    """As it is sent, without the question mark."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """``host:port``: all of it that a name or a label may show."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class GpuItem:
    """One source."""

    kind: str
    url: ScrapeUrl | None = None
    """Of a kind in ``SCRAPED``."""
    file: str = ""
    """Of ``fake``."""


def split_items(text: str) -> list[str]:
    """Cut a list at the commas that stand before a known kind; blanks around the items are dropped."""
    return [part.strip() for part in _NEXT.split(text)]


def parse_items(items: Sequence[str]) -> tuple[GpuItem, ...]:
    """Read what a list names.

    Args:
        items: each one of ``FORMS``.

    Returns:
        At least one source.

    Raises:
        ValueError: something in it is wrong; the text tells all faults, without passwords.
    """
    read: list[GpuItem] = []
    faults: list[str] = []
    for text in items:
        try:
            item = _item(text)
        except ValueError as error:
            faults.append(f"{shown(shown_item(text))}: {error}")
            continue
        if _same(item) in map(_same, read):
            faults.append(f"{shown(shown_item(text))} stands there twice")
        read.append(item)
    if not faults:
        faults += _contradictions(read)
    if faults:
        raise ValueError("; ".join(faults))
    return tuple(read)


def normal_item(text: str) -> str:
    """An item that is right, with its kind in lower case and without blanks around its parts."""
    kind, colon, rest = text.partition(":")
    return kind.strip().lower() + colon + rest.strip()


def shown_item(text: str) -> str:
    """An item as it may be shown."""
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
        yield "no source is named; none says so"
    if "none" in kinds and len(kinds) > 1:
        yield "none stands alone"
    if "auto" in kinds and {"nvml", "fake"} & set(kinds):
        yield f"auto can be joined with {', '.join(SCRAPED)} only"


def _same(item: GpuItem) -> tuple[object, ...]:
    """What two items must not share: a login does not make another source."""
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
    # First of all: what follows may show a part of the URL, and this is what a password has become a part of.
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
