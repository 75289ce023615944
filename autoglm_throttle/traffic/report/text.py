"""The document as JSON text, and back."""

from __future__ import annotations

import json
from typing import NoReturn, cast

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report.form import misfit
from autoglm_throttle.traffic.report.schema import KIND, SCHEMA, Document


def dumps(document: Document) -> str:
    """A report as JSON, one line for each of its parts; equal documents give equal text.

    Raises:
        ValueError: a number that JSON cannot say, in a part that came from outside.
    """
    parts = (
        f"{json.dumps(name)}: {json.dumps(part, separators=(',', ':'), allow_nan=False)}"
        for name, part in document.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def loads(text: str) -> Document:
    """Read a report.

    Raises:
        TrafficError: no JSON, no report, a schema that this version does not know, or a part that is
            missing or of another form.
    """
    try:
        read = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as fault:
        raise TrafficError(f"this is no JSON: {fault}") from None
    if not isinstance(read, dict) or read.get("kind") != KIND:
        raise TrafficError(f'this is no report: its "kind" must be "{KIND}"')
    if read.get("schema") != SCHEMA:
        raise TrafficError(f"a report of schema {read.get('schema')!r}; this version reads schema {SCHEMA}")
    place = misfit(read, Document)
    if place is not None:
        raise TrafficError(f"the report is damaged: {place} is missing or not what it should be")
    return cast(Document, read)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")
