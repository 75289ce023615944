"""Writes the report document as JSON text and reads it back."""

from __future__ import annotations

import json
from typing import NoReturn, cast

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report.schema import KIND, SCHEMA, Document
from autoglm_throttle.traffic.report.schema_check import schema_error


def dumps(document: Document) -> str:
    """Format a report as JSON, one line for each of its parts; equal documents give equal text.

    Raises:
        ValueError: an external part holds a number that JSON cannot represent.
    """
    parts = (
        f"{json.dumps(name)}: {json.dumps(part, separators=(',', ':'), allow_nan=False)}"
        for name, part in document.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def loads(text: str) -> Document:
    """Parse a report.

    Raises:
        TrafficError: no JSON, no report, an unknown schema, or a part that is missing or has the wrong type.
    """
    try:
        # json.loads accepts NaN and Infinity unless parse_constant rejects them.
        read = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as fault:
        raise TrafficError(f"this is no JSON: {fault}") from None
    if not isinstance(read, dict) or read.get("kind") != KIND:
        raise TrafficError(f'this is no report: its "kind" must be "{KIND}"')
    if read.get("schema") != SCHEMA:
        raise TrafficError(f"a report of schema {read.get('schema')!r}; this version reads schema {SCHEMA}")
    place = schema_error(read, Document)
    if place is not None:
        raise TrafficError(f"the report is damaged: {place} is missing or of the wrong type")
    return cast(Document, read)


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")
