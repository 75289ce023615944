"""The elements of one array in a JSON document, one at a time.

The standard library reads JSON documents whole. Its decoder can begin in the middle of a text, though, so a
window of the document is enough: it grows until it holds one value, and forgets what was read.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from autoglm_throttle.traffic.errors import TrafficError

VALUE_AT_MOST: Final = 16 << 20
"""Characters of one value, so that a window stays small: a request, an answer of some megabytes with it."""

CHUNK: Final = 64 << 10

_NOT_BLANK = re.compile(r"[^ \t\r\n]")


class Window:
    """A part of a JSON document, and how far it was read.

    Args:
        stored: the document, in UTF-8.
    """

    def __init__(self, stored: BinaryIO) -> None:
        self.line: int = 1
        """Where the next value begins; from 1."""
        self._stored = stored
        self._bytes = codecs.getincrementaldecoder("utf-8-sig")()
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._ended = False

    def enter(self, *names: str) -> None:
        """Go to the array that these names lead to, object by object, and past its bracket.

        Raises:
            TrafficError: there is none, or what stands before it is no JSON.
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
        """The elements of the array, each with the line where it begins.

        Raises:
            TrafficError: the rest is no JSON, ends in the middle, or an element is too long or too deep.
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
        """The next character that is not blank; empty at the end of the document."""
        while True:
            found = _NOT_BLANK.search(self._text, self._at)
            self._read_to(len(self._text) if found is None else found.start())
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def expect(self, mark: str) -> None:
        """Go past one character.

        Raises:
            TrafficError: another one stands there.
        """
        if self.peek() != mark:
            raise TrafficError(f"line {self.line}: not JSON, or it ends here: expected {mark}")
        self._at += 1

    def value(self) -> object:
        """The next value.

        Raises:
            TrafficError: it is no JSON, ends in the middle, or is too long or too deep.
        """
        self.peek()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise TrafficError(f"line {self.line}: too deep") from None
            except ValueError:
                found, end = None, 0
            if end and (end < len(self._text) or self._ended):  # else a number might go on
                self._read_to(end)
                return found
            if len(self._text) - self._at > VALUE_AT_MOST:
                raise TrafficError(f"line {self.line}: not JSON, or longer than {VALUE_AT_MOST} characters")
            if not self._more() and not end:
                raise TrafficError(f"line {self.line}: not JSON, or it ends in the middle")

    def _read_to(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def _more(self) -> bool:
        """Make the window longer; each time twice, so that a long value is not tried over and over."""
        if self._ended:
            return False
        kept = self._text[self._at :]
        part = self._stored.read(max(CHUNK, len(kept)))
        self._ended = not part
        try:
            self._text, self._at = kept + self._bytes.decode(part, final=self._ended), 0
        except UnicodeDecodeError:
            raise TrafficError(f"line {self.line}: not UTF-8") from None
        return not self._ended or len(self._text) > len(kept)
