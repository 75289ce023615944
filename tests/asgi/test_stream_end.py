"""Events that end a stream early: each SDK reads them as the end of an answer of maximum length."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import RawMessageDeltaEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.completion import Completion
from openai.types.responses import ResponseIncompleteEvent

from autoglm_throttle.asgi.stream_end import end_of_stream

CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
TEXT = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
MESSAGE = {"type": "message_start", "message": {"id": "msg_1"}}
DELTA = {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.0,
    "model": "m",
    "output": [],
}
RESPONSE |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "status": "in_progress"}
CREATED = {"type": "response.created", "response": RESPONSE}
TEXT_DELTA = {"type": "response.output_text.delta", "sequence_number": 7, "delta": "a"}
SGLANG: dict[str, Any] = {
    "text": "a",
    "meta_info": {"id": "1", "completion_tokens": 9, "finish_reason": None},
}


def end_of(first: Any, last: Any) -> bytes | None:
    return end_of_stream(json.dumps(first).encode(), json.dumps(last).encode(), 9)


def documents(first: Any, last: Any) -> list[Any]:
    """Return the events of the end, each with its name if it has one."""
    end = end_of(first, last)
    assert end is not None
    assert end.endswith(b"\n\n")
    found = []
    for event in end.decode().split("\n\n")[:-1]:
        name, _, data = event.rpartition("data: ")
        document: Any = data if data == "[DONE]" else json.loads(data)
        assert not name or name == f"event: {document['type']}\n"
        found.append(document)
    return found


def test_chat_ends_by_its_length() -> None:
    choice = {"index": 2, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    document, done = documents(CHUNK, CHUNK | {"choices": [choice]})
    chunk = ChatCompletionChunk.model_validate(document)
    assert (chunk.id, chunk.model, done) == ("chatcmpl-1", "m", "[DONE]")
    assert [(each.index, each.finish_reason, each.delta.content) for each in chunk.choices] == [
        (2, "length", None)
    ]


def test_completion_ends_by_its_length() -> None:
    document, done = documents(TEXT, TEXT | {"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    completion = Completion.model_validate(document)
    assert (completion.choices[0].finish_reason, completion.choices[0].text, done) == ("length", "", "[DONE]")


def test_message_ends_with_its_content_block() -> None:
    stop, delta, end = documents(MESSAGE, DELTA)
    event = RawMessageDeltaEvent.model_validate(delta)
    assert (event.delta.stop_reason, event.usage.output_tokens) == ("max_tokens", 9)
    assert (stop, end) == ({"type": "content_block_stop", "index": 1}, {"type": "message_stop"})


@pytest.mark.parametrize("number", [{}, {"sequence_number": 7}])
def test_response_is_incomplete(number: Any) -> None:
    (document,) = documents(CREATED, {"type": "response.output_text.delta", "delta": "a"} | number)
    assert document.get("sequence_number") == (8 if number else None)
    response = ResponseIncompleteEvent.model_validate({"sequence_number": 8} | document).response
    assert (response.id, response.status) == ("resp_1", "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_native_stream_of_sglang_ends_by_its_length() -> None:
    document, done = documents(SGLANG, SGLANG)
    assert document["meta_info"]["finish_reason"] == {"type": "length", "length": 9}
    assert (document["text"], done) == ("a", "[DONE]")


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (CHUNK, CHUNK | {"choices": []}),
        (CHUNK, CHUNK | {"choices": [{"delta": {}, "finish_reason": "stop"}]}),
        (CHUNK, CHUNK | {"choices": ["a"]}),
        (MESSAGE, {"type": "ping"}),
        (MESSAGE, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        (DELTA, DELTA),
        (CREATED, {"type": "response.completed", "response": RESPONSE}),
        (TEXT_DELTA, TEXT_DELTA),
        (SGLANG, SGLANG | {"meta_info": {"finish_reason": {"type": "stop"}}}),
        ({"answer": "a"}, {"answer": "b"}),
        ([], CHUNK),
        (CHUNK, "text"),
    ],
)
def test_other_stream_or_one_at_its_end_is_not_ended(first: Any, last: Any) -> None:
    assert end_of(first, last) is None


def test_stream_after_its_last_event_is_not_ended() -> None:
    assert end_of_stream(json.dumps(CHUNK).encode(), b"[DONE]", 9) is None
