"""A strict reader of RFC 9651 lists, as far as the RateLimit fields need it: strings and integers."""

from __future__ import annotations

import re

Value = str | int
Item = tuple[Value, dict[str, Value | bool]]

_STRING = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_INTEGER = re.compile(r"-?[0-9]{1,15}(?![0-9.])")
_KEY = re.compile(r"[a-z*][a-z0-9_\-.*]*")


def read_list(field: bytes) -> list[Item]:
    """Read a list of items (section 4.2.1).

    Raises:
        ValueError: it does not parse, which means that a recipient ignores the whole field.
    """
    text = field.decode("ascii").strip(" ")
    items: list[Item] = []
    while text:
        item, text = _item(text)
        items.append(item)
        text = text.lstrip(" \t")
        if not text:
            return items
        if text[0] != ",":
            raise ValueError(f"a comma is missing before {text!r}")
        text = text[1:].lstrip(" \t")
        if not text:
            raise ValueError("a comma at the end")
    return items


def _item(text: str) -> tuple[Item, str]:
    value, text = _bare(text)
    parameters: dict[str, Value | bool] = {}
    while text.startswith(";"):
        text = text[1:].lstrip(" ")
        key = _KEY.match(text)
        if key is None:
            raise ValueError(f"no key at {text!r}")
        text = text[key.end() :]
        parameters[key[0]] = True
        if text.startswith("="):
            parameters[key[0]], text = _bare(text[1:])
    return (value, parameters), text


def _bare(text: str) -> tuple[Value, str]:
    string = _STRING.match(text)
    if string is not None:
        return re.sub(r"\\(.)", r"\1", string[1]), text[string.end() :]
    integer = _INTEGER.match(text)
    if integer is not None:
        return int(integer[0]), text[integer.end() :]
    raise ValueError(f"neither a string nor an integer at {text!r}")
