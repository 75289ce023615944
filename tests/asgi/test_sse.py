"""The readers of responses: tokens of every dialect, for every way of dividing a body into messages."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.asgi.sse import (
    EVENT_BYTES,
    TAIL_BYTES,
    BodyReader,
    ByteCounter,
    EventReader,
    UsageReader,
    usage_reader,
)
from autoglm_throttle.limiting import token_usage
from autoglm_throttle.limiting.token_usage import SAMPLES_AT_MOST, TOKENS_AT_MOST, TokenUsage
from tests.asgi.recorded_streams import JSON, RECORDED, SSE, Recorded

Counts = tuple[int | None, int, int | None, int, int]


def reader_of(content_type: bytes = SSE, **fields: bytes) -> UsageReader:
    headers = [(b"server", b"test"), (b"Content-Type", content_type)]
    headers += [(name.encode().replace(b"_", b"-"), value) for name, value in fields.items()]
    made = usage_reader(headers, TokenUsage())
    assert made is not None
    return made


def counts(usage: TokenUsage) -> Counts:
    return usage.input, usage.cached, usage.output, usage.output_at_least(1.0), usage.events


def read(content_type: bytes, *chunks: bytes) -> Counts:
    reader = reader_of(content_type)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    return counts(reader.usage)


def divided(body: bytes, ends: list[int]) -> list[bytes]:
    places = [0, *sorted(end % (len(body) + 1) for end in ends), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(places)]


def events(*documents: Any) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(document).encode() for document in documents)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_response_has_its_tokens(name: str) -> None:
    recorded = RECORDED[name]
    expected = (recorded.input, recorded.cached, recorded.output)
    *reported, at_least, count = read(recorded.content_type, recorded.body)
    assert tuple(reported) == expected
    assert at_least == max(len(recorded.text.encode()), recorded.output or 0)
    assert count == recorded.events


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_response_divided_anywhere_is_the_same(name: str) -> None:
    recorded = RECORDED[name]
    kind, body = recorded.content_type, recorded.body
    whole = read(kind, body)
    assert read(kind, *(body[at : at + 1] for at in range(len(body)))) == whole
    for at in range(len(body) + 1):
        assert read(kind, body[:at], b"", body[at:]) == whole


bodies = st.one_of(
    st.sampled_from(list(RECORDED.values())),
    st.builds(
        lambda parts, kind: Recorded(b"".join(parts), kind, None, 0, None, "", 0),
        st.lists(
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from(
                    [b"\n", b"\r", b"\r\n", b"data:", b"data: ", b"\n\n", b"[DONE]", b"\xef\xbb\xbf"]
                ),
                st.sampled_from([each.body for each in RECORDED.values()]).map(lambda body: body[:300]),
                st.integers(EVENT_BYTES - 9, EVENT_BYTES + 9).map(lambda size: b"data: " + b"x" * size),
            ),
            max_size=12,
        ),
        st.sampled_from([SSE, JSON, b"text/plain"]),
    ),
)


@given(bodies, st.lists(st.integers(0, 400_000), max_size=30))
def test_any_bytes_divided_anywhere_are_the_same(recorded: Recorded, ends: list[int]) -> None:
    kind, body = recorded.content_type, recorded.body
    assert read(kind, *divided(body, ends)) == read(kind, body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "delta", "message", "text", "usage", "type", "object", "meta_info"),
                    *("content", "output", "response", "index", "prompt_tokens", "output_tokens"),
                    "prompt_tokens_details",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_counted_without_an_exception(document: Any) -> None:
    for kind, body in ((SSE, events(document)), (JSON, json.dumps(document).encode())):
        reported, cached, output, at_least, count = read(kind, body)
        assert reported is None or reported >= 0
        assert min(cached, output or 0, at_least, count) >= 0


texts = st.text(max_size=6) | st.sampled_from(
    ["content", "delta", "assistant", '"', "\\", "\\n", "a", "b", "0"]
)
deltas = st.one_of(
    st.builds(lambda text: {"choices": [{"index": 0, "delta": {"content": text}}], "usage": None}, texts),
    st.builds(lambda text: {"choices": [{"delta": {"role": text, "content": "a"}}, {"text": text}]}, texts),
    st.builds(
        lambda text: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}, texts
    ),
    st.builds(
        lambda text, used, cached: {
            "choices": [{"delta": {"content": text}}],
            "usage": {"prompt_tokens": 9, "output_tokens": used} | cached,
        },
        texts,
        st.none() | st.integers(-1, 1200),
        st.sampled_from([{}, {"cached_tokens": None}, {"cached_tokens": 7}, {"cached_tokens": 11}]),
    ),
    json_values,
)


@given(st.lists(deltas, max_size=12), st.booleans())
def test_known_template_of_an_event_changes_no_count(documents: list[Any], ascii_only: bool) -> None:
    body = b"".join(
        b"data: %s\n\n" % json.dumps(each, ensure_ascii=ascii_only).encode("utf-8", "replace")
        for each in documents
    )
    parsed = reader_of(SSE)
    parsed.usage._templates_left = 0
    parsed.feed(body)
    assert read(SSE, body) == counts(parsed.usage)


@pytest.mark.parametrize("usage", [{}, {"usage": {"prompt_tokens": 5, "completion_tokens": 1}}])
@pytest.mark.parametrize("space", ["", " "])
def test_event_of_a_known_template_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch, usage: Any, space: str
) -> None:
    reader, stream = reader_of(SSE), []
    for count, text in ((1, "one"), (20, "three"), (300, "你")):
        document = {"choices": [{"delta": {"content": text}, "finish_reason": None}], **usage}
        if usage:
            document["usage"] = {**usage["usage"], "completion_tokens": count}
        separators = ("," + space, ":" + space)
        stream.append(json.dumps(document, separators=separators, ensure_ascii=False).encode())
    stream = [b"data: %s\n\n" % each for each in stream]
    reader.feed(stream[0])
    with monkeypatch.context() as patch:
        patch.setattr(token_usage, "parsed", None)
        for each in stream[1:]:
            reader.feed(each)
    assert counts(reader.usage) == ((5, 0, 300, 300, 3) if usage else (None, 0, None, 11, 3))
    assert reader.usage.text_bytes == 11


def test_usage_of_another_form_or_place_is_parsed() -> None:
    plain: dict[str, Any] = {"choices": [{"delta": {"content": "a"}}]}
    nested = {"choices": [{"delta": {"content": "a"}, "usage": {"completion_tokens": 3}}]}
    usages: list[dict[str, Any]] = [{"usage": {"completion_tokens": count}} for count in (1, 2, None)]
    growing = [plain | usage for usage in usages[:2]]
    for documents, output in (
        ([plain | {"usage": {"completion_tokens": 1, "note": "é"}}] * 2, 1),
        ([usage | plain for usage in usages[:2]], 2),
        ([nested | usage for usage in usages[:2]], 2),
        ([*growing, plain | usages[2]], None),
        ([*growing, {"usage": {"cached_tokens": 1}}], 2),
        ([*growing, plain], None),
    ):
        assert read(SSE, events(*documents))[2] == output


def test_event_above_the_maximum_counts_by_its_bytes() -> None:
    line = b"data: " + b"x" * EVENT_BYTES
    assert read(SSE, line + b"\n\n" + events({"choices": [{"text": "ab"}]}))[3:] == (len(line) + 2, 2)
    assert read(SSE, *divided(line + b"\n\n", list(range(0, len(line), 1000))))[3:] == (len(line), 1)


def test_event_of_the_maximum_is_read() -> None:
    wrapper = len(events({"choices": [{"text": ""}]})) - 2
    text = "x" * (EVENT_BYTES - wrapper)
    assert read(SSE, events({"choices": [{"text": text}]}))[3] == len(text)
    assert read(SSE, events({"choices": [{"text": text + "x"}]}))[3] == EVENT_BYTES + 1


@pytest.mark.parametrize("part", [b"data:\n", b"x", b"data: " + b"y" * 999 + b"\n", b"data: {}\n\n", b"\r"])
@pytest.mark.parametrize("kind", [SSE, JSON])
def test_memory_of_a_reader_is_bounded(part: bytes, kind: bytes) -> None:
    reader = reader_of(kind)
    for turn in range(2 * EVENT_BYTES // len(part)):
        reader.feed(part)
        if turn % 500 == 0:
            slots = [getattr(reader, name) for name in type(reader).__slots__]
            assert sum(map(sys.getsizeof, slots)) <= 128 * 1024
    reader.feed(part * (9 * EVENT_BYTES // len(part)))
    assert sum(sys.getsizeof(getattr(reader, name)) for name in type(reader).__slots__) <= 128 * 1024


def test_usage_at_the_end_of_a_long_body_is_read() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5}
    text = '"usage":{"prompt_tokens":999}' + "x" * 2 * EVENT_BYTES
    schema = {"usage": {"type": "object"}, "note": '"usage": {"output_tokens": 7}'}
    body = json.dumps({"choices": [{"text": text}], "usage": usage, "tools": schema}).encode()
    assert read(JSON, body)[:3] == (3, 0, 5)
    assert read(JSON, body + b" " * TAIL_BYTES)[:3] == (None, 0, None)


def test_body_of_an_unknown_form_counts_by_its_bytes() -> None:
    for body in (b"not json", b'{"answer": 1}', b"[1, 2]", b'"text"'):
        assert read(JSON, body) == (None, 0, None, len(body), 1)
    assert read(JSON) == (None, 0, None, 0, 0)


@pytest.mark.parametrize("count", [-1, TOKENS_AT_MOST + 1, True, "7", 7.0, None, [7]])
def test_implausible_count_is_ignored(count: Any) -> None:
    usage = {
        "prompt_tokens": count,
        "output_tokens": count,
        "prompt_tokens_details": {"cached_tokens": count},
    }
    first = events({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}})
    assert read(SSE, first, events({"choices": [], "usage": usage}))[:3] == (4, 0, 6)


@pytest.mark.parametrize(
    "document",
    [
        *({"type": kind} for kind in ("ping", "message_stop", "response.created")),
        {"choices": []},
        {"choices": [{}]},
        {"choices": [None, 7]},
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"error": {"message": "overloaded"}},
        {"usage": 7},
    ],
)
def test_event_without_text_is_no_token(document: Any) -> None:
    assert read(SSE, events(document)) == (None, 0, None, 0, 0)


@pytest.mark.parametrize("document", [{"generated": "text"}, [1], "text", None, 7])
def test_event_of_an_unknown_form_is_a_token(document: Any) -> None:
    assert read(SSE, events(document))[4] == 1


def test_deeply_nested_event_is_a_token() -> None:
    assert read(SSE, b"data: " + b"[" * 60_000 + b"\n\n")[4] == 1


def test_output_is_unknown_after_its_report() -> None:
    report = {"choices": [], "usage": {"completion_tokens": 90}}
    text = {"choices": [{"text": "ab"}]}
    assert read(SSE, events(text, report))[2:4] == (90, 90)
    assert read(SSE, events(report, text))[2:4] == (None, 90)


def test_answers_of_one_response_are_bounded() -> None:
    info = {"prompt_tokens": 1, "completion_tokens": 2}
    documents = [{"text": "a", "meta_info": info, "index": n} for n in range(SAMPLES_AT_MOST + 5)]
    assert read(SSE, events(*documents, documents[0]))[:3] == (SAMPLES_AT_MOST, 0, 2 * SAMPLES_AT_MOST)


def test_reader_follows_the_header_fields() -> None:
    assert isinstance(reader_of(SSE), EventReader)
    assert isinstance(reader_of(SSE, content_encoding=b"identity"), EventReader)
    assert isinstance(reader_of(b"application/problem+json"), BodyReader)
    assert isinstance(reader_of(b"text/plain"), ByteCounter)
    assert isinstance(reader_of(SSE, content_encoding=b"gzip"), ByteCounter)
    assert usage_reader([(b"content-type", b"audio/mpeg")], TokenUsage()) is None
    assert usage_reader([], TokenUsage()) is None


def test_text_of_another_kind_counts_by_its_bytes() -> None:
    assert read(b"text/plain", b"abc", b"de") == (None, 0, None, 5, 0)
