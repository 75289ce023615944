"""The report as one HTML page: a template with the report's JSON inside and one script that draws it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources

from autoglm_throttle.traffic.report.schema import Document
from autoglm_throttle.traffic.report.text_report import printable

_SCRIPT_START, _SCRIPT_END = "<script>", "</script></body>"


def render(document: Document, sentences: Sequence[str] = ()) -> str:
    """Render the page of a report, with sentences below the verdict; equal arguments give an equal page.

    A number in an external part of the report that JSON cannot represent raises ValueError.
    """
    data = json.dumps({**document, "sentences": list(sentences)}, separators=(",", ":"), allow_nan=False)
    head, _, tail = _template().partition("{{report}}")
    # In a script element only "<" has a meaning: it may begin an end tag or a comment.
    return (
        head.replace("{{title}}", escape(printable(document["title"]))) + data.replace("<", "\\u003c") + tail
    )


@cache
def _template() -> str:
    """Return the page with a content security policy that allows its own script and nothing else."""
    text = resources.files("autoglm_throttle.traffic.report").joinpath("page.html").read_text("utf-8")
    script = text[text.index(_SCRIPT_START) + len(_SCRIPT_START) : text.index(_SCRIPT_END)]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return text.replace("{{script}}", f"sha256-{digest}")
