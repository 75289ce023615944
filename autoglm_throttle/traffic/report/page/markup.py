"""HTML elements. Plain text is always escaped; only `Markup` made by `tag` is not.

The result is both HTML and well-formed XML, so that a test can read it with any parser.
"""

from __future__ import annotations

import re
from html import escape

EMPTY = frozenset({"meta"})
"""HTML elements without an end tag, as far as these pages use them."""

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML documents may not hold (XML 1.0, 2.2), and the invisible C1 controls."""


class Markup(str):
    """Escaped markup."""

    __slots__ = ()


def clean(text: str) -> str:
    """Escape text and replace unprintable characters."""
    return escape(_UNPRINTABLE.sub("\ufffd", text))


def tag(name: str, /, *children: str, **attributes: str) -> Markup:
    """Build an element.

    Args:
        name: of the element.
        children: its content; any child that is no `Markup` is text.
        attributes: ``_`` stands for ``-``; a trailing one, as in ``class_``, is dropped.
    """
    fields = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{clean(value)}"' for key, value in attributes.items()
    )
    if name in EMPTY:
        return Markup(f"<{name}{fields} />")
    return Markup(f"<{name}{fields}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Join several elements or texts."""
    return Markup("".join(child if isinstance(child, Markup) else clean(child) for child in children))
