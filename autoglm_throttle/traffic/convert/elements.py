"""Reads the elements of one array in a JSON document, one at a time.

The standard library reads only whole JSON documents. Its decoder can start in the middle of a text, though.
So a window of the document is enough: it grows until it holds one value, and drops the consumed text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from autoglm_throttle.traffic.errors import TrafficError

MAX_VALUE_CHARS: Final = 16 << 20
"""Most characters of one value, to bound the window: a request with an answer of some megabytes."""

CHUNK: Final = 64 << 10

_NOT_BLANK = re.compile(r"[^ \t\r\n]")


class JsonWindow:
    """A window of a JSON document, with a read position.

    Args:
        stored: the document, in UTF-8.
    """

    def __init__(self, stored: BinaryIO) -> None:
        self.line: int = 1
        """Line of the next value, from 1."""
        self._stored = stored
        self._bytes = codecs.getincrementaldecoder("utf-8-sig")()
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._ended = False

    def enter_array(self, *names: str) -> None:
        """Go to the array at this path of object keys, past its opening bracket.

        Raises:
            TrafficError: there is no such array, or invalid JSON before it.
        """
        for name in names:
            self.expect("{")
            while self.peek() != "}" and self.value() != name:
                self.expect(":")
                self.value()
                if self.peek() != "}":
                    self.expect(",")
            if self.peek() == "}":
                raise TrafficError(f"line {self.line}: no {name!r} in the document")
            self.expect(":")
        self.expect("[")

    def elements(self) -> Iterator[tuple[int, object]]:
        """Yield the elements of the array, each with its line number.

        Raises:
            TrafficError: invalid or truncated JSON, or an element that is too long or too deep.
        """
        if self.peek() == "]":
            return
        while True:
            self.peek()
            yield self.line, self.value()
            if self.peek() != ",":
                self.expect("]")
                return
            self.expect(",")

    def peek(self) -> str:
        """Return the next character that is not blank; empty at the end of the document."""
        while True:
            found = _NOT_BLANK.search(self._text, self._at)
            self._read_to(len(self._text) if found is None else found.start())
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def expect(self, mark: str) -> None:
        """Consume one character.

        Raises:
            TrafficError: the next character is another one.
        """
        if self.peek() != mark:
            raise TrafficError(f"line {self.line}: not JSON, or it ends here: expected {mark}")
        self._at += 1

    def value(self) -> object:
        """Decode the next value.

        Raises:
            TrafficError: invalid or truncated JSON, or a value that is too long or too deep.
        """
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise TrafficError(f"line {self.line}: too deep") from None
            except ValueError:
                # The value may be incomplete: extend the window and try again.
                value, end = None, 0
            if end and (end < len(self._text) or self._ended):  # a number at the end may continue
                self._read_to(end)
                return value
            if len(self._text) - self._at > MAX_VALUE_CHARS:
                raise TrafficError(f"line {self.line}: not JSON, or longer than {MAX_VALUE_CHARS} characters")
            if not self._more() and not end:
                raise TrafficError(f"line {self.line}: not JSON, or it ends in the middle")

    def _read_to(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def _more(self) -> bool:
        """Extend the window; False at the end of the document."""
        if self._ended:
            return False
        # Doubled each time, so that a long value is decoded only O(log n) times.
        rest = self._text[self._at :]
        part = self._stored.read(max(CHUNK, len(rest)))
        self._ended = not part
        try:
            self._text, self._at = rest + self._bytes.decode(part, final=self._ended), 0
        except UnicodeDecodeError:
            raise TrafficError(f"line {self.line}: not UTF-8") from None
        return not self._ended or len(self._text) > len(rest)
