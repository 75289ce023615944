"""Schemas of manifests: objects without other keys, since a misspelt one would be ignored by its tool."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def exact(required: Schema, optional: Schema | None = None) -> Schema:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def const(value: object) -> Schema:
    """One value."""
    return {"const": value}


def each(item: Schema) -> Schema:
    """A list that is not empty."""
    return {"type": "array", "items": item, "minItems": 1}


def by_name(value: Schema, pattern: str = "^[A-Za-z0-9_./-]+$") -> Schema:
    """An object with names of its own for equal values."""
    return {"type": "object", "patternProperties": {pattern: value}, "additionalProperties": False}


WHOLE: Schema = {"type": "integer", "minimum": 0}
TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
DURATION: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?(ms|s|m)$"}
NAME: Schema = exact({"name": {"type": "string", "pattern": "^[a-z0-9-]{1,63}$"}})
