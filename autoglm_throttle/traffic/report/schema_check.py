"""Checks external data against a schema of types."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import UnionType
from typing import Literal, get_args, get_origin, get_type_hints, is_typeddict


def schema_error(value: object, hint: object, place: str = "") -> str | None:
    """Find the first place where data does not match its schema.

    Args:
        value: data as returned by `json.loads`.
        hint: a ``TypedDict``, ``list``, ``dict`` with text as keys, ``Literal``, union or plain type.
        place: path of the value, used in the result.

    Returns:
        The path, such as ``totals.response.count``; None if the data matches.
    """
    if is_typeddict(hint):
        return _typed_dict_error(value, hint, place)
    origin, within = get_origin(hint), get_args(hint)
    if origin is list:
        return _first_error(value, list, within[0], place)
    if origin is dict:
        return _first_error(value, dict, within[1], place)
    if origin is UnionType:
        return None if any(schema_error(value, one, place) is None for one in within) else place
    fits = value in within if origin is Literal else _is_plain(value, hint)
    return None if fits else place


@lru_cache
def _parts(schema: type) -> dict[str, object]:
    return dict(get_type_hints(schema))


def _typed_dict_error(value: object, schema: object, place: str) -> str | None:
    if not isinstance(value, dict) or not isinstance(schema, type):
        return place
    required: frozenset[str] = getattr(schema, "__required_keys__")  # noqa: B009 - mypy knows no TypedDict's
    for name, hint in _parts(schema).items():
        inner = f"{place}.{name}" if place else name
        if name not in value:
            if name in required:
                return inner
        elif (error := schema_error(value[name], hint, inner)) is not None:
            return error
    return None


def _first_error(value: object, kind: type, hint: object, place: str) -> str | None:
    """Return the first error among the entries of a list or a dictionary."""
    if not isinstance(value, kind):
        return place
    entries: Iterable[tuple[object, object]] = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
    errors = (schema_error(entry, hint, f"{place}.{name}") for name, entry in entries)
    return next((one for one in errors if one is not None), None)


def _is_plain(value: object, hint: object) -> bool:
    """Whether a value has a plain type; an int is a valid float, a bool is not."""
    # bool is a subclass of int, so it would pass as a number.
    if isinstance(value, bool):
        return hint in {bool, object}
    if hint is float:
        return isinstance(value, (int, float))
    return isinstance(hint, type) and isinstance(value, hint)
