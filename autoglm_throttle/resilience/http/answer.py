"""An HTTP response as a value, as fallbacks return it.

A stored response keeps its body as received, including content-encoding, so no body is decoded or encoded
here. Header text is the ISO 8859-1 decoding of the bytes on the wire, which loses no byte (RFC 9110 section
5.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Header fields in their order; a name is repeated if a field occurs several times.
Pairs = tuple[tuple[str, str], ...]

NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+\Z")  # A field name, RFC 9110 section 5.1

# A field value: no line break, so no value can begin a field of its own (RFC 9110 section 5.5).
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*\Z")


def is_sendable(name: str, value: str) -> bool:
    """Whether a field can be sent unchanged."""
    return bool(NAME.match(name) and VALUE.match(value))


@dataclass(frozen=True, slots=True, init=False)
class HttpAnswer:
    """A complete HTTP response, returned by static or dynamic fallbacks of HTTP callers."""

    status: int
    headers: Pairs
    body: bytes

    def __init__(
        self,
        status: int = 200,
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> None:
        """Validate and store a response.

        Args:
            status: 200..599; responses below 200 are not final.
            headers: a mapping, or pairs if a name occurs several times.
            body: bytes as sent on the wire.

        Raises:
            ValueError: invalid status, name or value; all problems in one message.
            TypeError: the body is not bytes.
        """
        if not isinstance(body, bytes):
            raise TypeError(f"body is {type(body).__name__}, not bytes: encode it")
        pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        faults = [] if 200 <= status <= 599 else [f"status {status} is not in 200..599"]
        faults += [f"header {pair} cannot be sent" for pair in pairs if not is_sendable(*pair)]
        if faults:
            raise ValueError("; ".join(faults))
        object.__setattr__(self, "status", status)
        object.__setattr__(self, "headers", pairs)
        object.__setattr__(self, "body", body)

    def __repr__(self) -> str:
        return f"<HttpAnswer {self.status}, {len(self.headers)} headers, {len(self.body)} bytes>"

    def with_header(self, *pairs: tuple[str, str]) -> HttpAnswer:
        """Return a copy in which each given pair replaces all fields of its name."""
        replaced = {name.lower() for name, _ in pairs}
        others = tuple(pair for pair in self.headers if pair[0].lower() not in replaced)
        return HttpAnswer(self.status, others + pairs, self.body)
