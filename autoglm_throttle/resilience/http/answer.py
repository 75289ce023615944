"""An HTTP answer as a value: what a fallback gives in place of a dependency's own.

A stored answer keeps its body as it came, content-encoding and all, so nothing here decodes or encodes one.
Header text is what the bytes on the wire say in ISO 8859-1, the one reading in which no byte is lost
(RFC 9110 section 5.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Pairs = tuple[tuple[str, str], ...]
"""Header fields in their order, names repeated where a field came several times."""

NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")
"""A field name, RFC 9110 section 5.1."""

VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")
"""A field value: no line break, so no value can begin a field of its own (RFC 9110 section 5.5)."""


def sendable(name: str, value: str) -> bool:
    """Whether a field can be sent as it is."""
    return bool(NAME.match(name) and VALUE.match(value))


@dataclass(frozen=True, slots=True, init=False)
class HttpAnswer:
    """A whole answer: what a static or a dynamic fallback gives in the faces for HTTP."""

    status: int
    headers: Pairs
    body: bytes

    def __init__(
        self,
        status: int = 200,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> None:
        """Take an answer that can be sent as it stands.

        Args:
            status: 200..599; an answer below 200 is none yet.
            headers: a mapping, or pairs where a name comes several times.
            body: bytes as they go over the wire.

        Raises:
            ValueError: a status, a name or a value that HTTP does not have; all faults in one report.
            TypeError: a body that is not bytes.
        """
        if not isinstance(body, bytes):
            raise TypeError(f"body is {type(body).__name__}, not bytes: encode it")
        pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        faults = [] if 200 <= status <= 599 else [f"status {status} is not in 200..599"]
        faults += [f"header {pair} cannot be sent" for pair in pairs if not sendable(*pair)]
        if faults:
            raise ValueError("; ".join(faults))
        object.__setattr__(self, "status", status)
        object.__setattr__(self, "headers", pairs)
        object.__setattr__(self, "body", body)

    def __repr__(self) -> str:
        return f"<HttpAnswer {self.status}, {len(self.headers)} headers, {len(self.body)} bytes>"

    def saying(self, *pairs: tuple[str, str]) -> HttpAnswer:
        """The same answer with some fields set, whatever it said of them before.

        Args:
            pairs: names and values; a name given replaces each field of that name.
        """
        said = {name.lower() for name, _ in pairs}
        kept = tuple(pair for pair in self.headers if pair[0].lower() not in said)
        return HttpAnswer(self.status, kept + pairs, self.body)
