"""Elements of a page. Plain text is escaped wherever it goes; only what `tag` made passes as it is.

The result is HTML and well-formed XML at once, so that a test can read it with any parser.
"""

from __future__ import annotations

import re
from html import escape

EMPTY = frozenset({"meta"})
"""Elements of HTML that have no end tag; among those that stand on our pages."""

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""No XML document may hold these, and nobody can see them (XML 1.0, 2.2; and the C1 controls)."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def clean(text: str) -> str:
    """Text with a mark in place of what cannot be shown, escaped."""
    return escape(_UNPRINTABLE.sub("\ufffd", text))


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """An element.

    Args:
        name: of the element.
        children: its content; what is no `Markup` is text.
        attributes: with ``_`` for ``-``; one at the end, as in ``class_``, is left out.
    """
    fields = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{clean(value)}"' for key, value in attributes.items()
    )
    if name in EMPTY:
        return Markup(f"<{name}{fields} />")
    return Markup(f"<{name}{fields}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Several elements or texts, one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else clean(child) for child in children))
