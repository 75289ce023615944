"""Tokens of a response: counts that an LLM service reports, and the text that it has sent."""

from __future__ import annotations

import re
from json import JSONDecoder
from math import ceil
from typing import Any, Final, TypeGuard

TOKENS_AT_MOST: Final = 10_000_000  # A larger count is taken for an error, and ignored
SAMPLES_AT_MOST: Final = 128  # Answers in one response: ``n`` of OpenAI's interface ends there

# An event of this size or less may be the template of those that follow; so many are tried in each stream.
TEMPLATE_BYTES: Final = 2048
TEMPLATES_AT_MOST: Final = 4

NO_TEMPLATE: Final = b"", b"", b"", b""
_DIGITS: Final = b"0123456789"

DONE: Final = b"[DONE]"  # The last event of OpenAI's streams is no JSON

# Fields of usage objects. OpenAI's prompt tokens contain cached ones, Anthropic's input tokens do not.
_REPORTED: Final = {
    "prompt_tokens": "_input",
    "input_tokens": "_input",
    "completion_tokens": "_output",
    "output_tokens": "_output",
    "cache_read_input_tokens": "_cache_read",
    "cache_creation_input_tokens": "_cache_written",
    "cached_tokens": "_cached",
    "prompt_tokens_details": "_cached",
    "input_tokens_details": "_cached",
}
_USAGE_KEY: Final = re.compile(rb'"usage"\s*:\s*')  # Quotes inside a JSON text are escaped: it is a key
# Texts that are not generated.
_NO_TEXT: Final = frozenset(
    {"call_id", "encrypted_content", "id", "role", "signature", "stop_reason", "stop_sequence", "type"}
)

# Types of parts that are no text.
_MEDIA: Final = frozenset(
    {
        "audio",
        "audio_url",
        "file",
        "image",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "video_url",
    }
)
MEDIA_TYPE_CHARACTERS: Final = 100  # Of a data URL, before its content

_scan: Final = JSONDecoder(strict=False).raw_decode


class TokenUsage:
    """Tokens of one response, read from its events or its body.

    Reported counts are cumulative in every dialect: a later one replaces an earlier one.
    """

    __slots__ = (
        *("_cache_read", "_cache_written", "_cached", "_template", "_templates_left", "_input", "_output"),
        *("_reported_at", "_samples", "_unread_usage", "events", "text_bytes"),
    )

    def __init__(self) -> None:
        self.events: int = 0  # Events with generated text, each of at least one token
        self.text_bytes: int = 0  # Bytes of generated text, in UTF-8
        self._input: int | None = None
        self._output: int | None = None
        self._cached = self._cache_read = self._cache_written = 0
        self._reported_at = 0  # Events before the newest output count
        # Bytes of an event before its text, up to its usage, and after it; then its usage without digits. The
        # first is empty if no template is known, the last two in a template without usage.
        self._template = NO_TEMPLATE
        self._unread_usage: bytes | bytearray = b""  # Of the newest event
        self._templates_left = TEMPLATES_AT_MOST
        # Of SGLang's native interface: prompt, cached and generated tokens, bytes of text; of each answer.
        self._samples: dict[int, tuple[int, int, int, int]] = {}

    @property
    def input(self) -> int | None:
        """Reported input tokens, cached ones included; None: none were reported."""
        self._read_usage()
        if self._samples:
            return sum(sample[0] for sample in self._samples.values())
        return None if self._input is None else self._input + self._cache_read + self._cache_written

    @property
    def cached(self) -> int:
        """Reported input tokens that were read from a cache."""
        self._read_usage()
        return self._cached + self._cache_read + sum(sample[1] for sample in self._samples.values())

    @property
    def output(self) -> int | None:
        """Reported output tokens of everything that was sent; None: the last events were not reported."""
        self._read_usage()
        if self._samples:
            return sum(sample[2] for sample in self._samples.values())
        return self._output if self._reported_at == self.events else None

    @property
    def text_size(self) -> int:
        """Bytes of generated text, in UTF-8."""
        return self.text_bytes + sum(sample[3] for sample in self._samples.values())

    def output_at_least(self, tokens_per_byte: float) -> int:
        """Return the output tokens by the events and their text, or by an earlier report if it is more."""
        self._read_usage()
        return max(self.events, ceil(self.text_size * tokens_per_byte), self._output or 0)

    def add_event(self, data: bytes | bytearray) -> None:
        """Count the data of one event; text that is no JSON counts as generated."""
        head, middle, tail, shape = self._template
        if head and data.startswith(head):
            # An earlier event had this template, with another text and other numbers: to parse it takes four
            # times as long. Of several such usages only the last one is parsed, which replaces the others.
            start = len(head)
            end = data.find(b'"', start)
            if end > start and data.startswith(middle, end) and data.find(b"\\", start, end) < 0:
                usage = data[end + len(middle) : len(data) - len(tail)]
                if data.endswith(tail) and usage.translate(None, _DIGITS) == shape:
                    self.events += 1
                    self.text_bytes += end - start
                    if usage:
                        self._unread_usage = usage
                    return
        if data == DONE:
            return
        self._read_usage()
        document, events, size = parsed(data), self.events, self.text_bytes
        if document is None or not self._add(document):
            self.add_unread(len(data))
        elif self._templates_left and self.events > events and len(data) <= TEMPLATE_BYTES:
            self._templates_left -= 1
            self._template = _template_of(document, data, self.text_bytes - size)

    def add_unread(self, size: int) -> None:
        """Count an event that was not read, by its bytes."""
        self._read_usage()
        self.events += 1
        self.text_bytes += size

    def add_body(self, document: object) -> bool:
        """Count a whole response; False: it has a form that is not known."""
        if isinstance(document, list):
            known = [self._add_sample(entry, place) for place, entry in enumerate(document)]
            return any(known)
        return self._add(document)

    def report(self, usage: object) -> bool:
        """Apply a usage object; False: it holds no count."""
        if not isinstance(usage, dict):
            return False
        reports = False
        for name, value in usage.items():
            field = _REPORTED.get(name)
            if field is None:
                continue
            if field == "_cached" and isinstance(value, dict):
                value = value.get("cached_tokens")  # noqa: PLW2901
            if is_count(value):
                setattr(self, field, value)
                reports = True
                if field == "_output":
                    self._reported_at = self.events
        return reports

    def _read_usage(self) -> None:
        """Apply the usage of the newest event if it was left unread."""
        if self._unread_usage:
            unread, self._unread_usage = self._unread_usage, b""
            self.report(parsed(unread))

    def _add(self, document: object) -> bool:
        """Count an object of a dialect; False: it has a form that is not known."""
        if not isinstance(document, dict):
            return False
        choices = document.get("choices")
        envelope: object = document
        if isinstance(choices, list):
            size = _size_of_choices(choices)
        elif isinstance(kind := document.get("type"), str):  # Anthropic, or OpenAI's responses
            size = text_size(document.get("content" if kind == "message" else "delta"))
            if "usage" not in document:
                envelope = document.get("message", document.get("response"))
        elif "meta_info" in document:
            return self._add_sample(document, document.get("index"))
        elif document.keys() & {"usage", "output", "error"}:
            size = text_size(document.get("output"))
        else:
            return False
        self._count(size, envelope)
        return True

    def _count(self, size: int, envelope: object) -> None:
        if size:
            self.events += 1
            self.text_bytes += size
        if isinstance(envelope, dict) and (usage := envelope.get("usage")) is not None:
            self.report(usage)

    def _add_sample(self, document: object, index: object) -> bool:
        """Count the state of one answer of SGLang's native interface, whose text is cumulative."""
        info = document.get("meta_info") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(info, dict):
            return False
        key = index if isinstance(index, int) else 0
        if key in self._samples or len(self._samples) < SAMPLES_AT_MOST:
            counts = (info.get(name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens"))
            earlier = self._samples.get(key, (0, 0, 0, 0))
            prompt, cached, generated = (
                new if is_count(new) else old for new, old in zip(counts, earlier, strict=False)
            )
            size = max(earlier[3], text_size(document.get("text")))
            self._samples[key] = (prompt, cached, generated, size)
        self.events += 1
        return True


def _template_of(document: Any, data: bytes | bytearray, size: int) -> tuple[bytes, bytes, bytes, bytes]:  # noqa: ANN401 - JSON
    """Return the bytes around the generated text and the usage, if each stands in one place alone."""
    choices, usage = document.get("choices"), document.get("usage")
    holder = choices[0] if isinstance(choices, list) and choices else document
    delta = (holder.get("delta") or holder.get("text")) if isinstance(holder, dict) else None
    if document.get("message") or document.get("response"):
        return NO_TEMPLATE
    for text in delta.values() if isinstance(delta, dict) else (delta,):
        quoted = b'"%s"' % text.encode("utf-8", "replace") if isinstance(text, str) else b""
        if quoted and len(quoted) == size + 2 and data.count(quoted) == 1:
            head, _, rest = bytes(data).partition(quoted)
            if not usage:
                return head + b'"', b'"' + rest, b"", b""
            keys = list(_USAGE_KEY.finditer(rest))
            after = rest[keys[-1].end() :] if len(keys) == 1 else b""
            reported, size = _scanned(after.decode("utf-8", "replace"))
            if reported == usage and after.isascii():
                middle = b'"' + rest[: len(rest) - len(after)]
                return head + b'"', middle, after[size:], after[:size].translate(None, _DIGITS)
    return NO_TEMPLATE


def parsed(data: bytes | bytearray) -> object:
    """Return the JSON in some bytes; None: there is none."""
    return _scanned(data.decode("utf-8", "replace").lstrip())[0]


def _scanned(text: str) -> tuple[object, int]:
    """Return the JSON at the start of a text, and its length; None: there is none."""
    try:
        return _scan(text)
    except (ValueError, RecursionError):
        return None, 0


def text_size(value: object) -> int:
    """Return the bytes of all texts in a value of JSON, in UTF-8; those of media and names do not count."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        return content_size(value)[0] if value else 0
    size = 0
    for name, text in value.items():
        if text and name not in _NO_TEXT:
            size += len(text) if isinstance(text, str) and text.isascii() else text_size(text)
    return size


def content_size(value: object) -> tuple[int, int, int]:
    """Return the bytes of all texts in a value of JSON, the numbers of its lists, and its parts of media."""
    size = numbers = media = 0
    pending = [[value]]
    while pending:
        for child in pending.pop():
            if isinstance(child, str):
                is_inline = child.startswith("data:") and ";base64," in child[:MEDIA_TYPE_CHARACTERS]
                media += is_inline
                size += 0 if is_inline else text_size(child)
            elif isinstance(child, list):
                pending.append(child)
            elif isinstance(child, dict):
                kind = child.get("type")
                if isinstance(kind, str) and kind in _MEDIA:
                    media += 1
                else:
                    pending.append([each for name, each in child.items() if name not in _NO_TEXT])
            elif type(child) is int:  # a token
                numbers += 1
    return size, numbers, media


def _size_of_choices(choices: list[Any]) -> int:
    size = 0
    for choice in choices:
        if isinstance(choice, dict):
            part = choice.get("delta") or choice.get("message") or choice.get("text")
            size += text_size(part)
    return size


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value of JSON is a plausible number of tokens."""
    return type(value) is int and 0 <= value <= TOKENS_AT_MOST
