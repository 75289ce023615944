"""Responses in the form of each LLM service, with the tokens that they report."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Recorded(NamedTuple):
    body: bytes
    content_type: bytes
    input: int | None
    cached: int
    output: int | None
    text: str
    events: int


SSE, JSON = b"text/event-stream; charset=utf-8", b"application/json"
WORDS = ("Guten ", "Tag, ", "我喜欢", " tokens \U0001f600", "\n\ndata: {}\n\n.")
TEXT = "".join(WORDS)


def _stream(*documents: Any, named: bool = False, end: str = "\n", done: bool = False) -> bytes:
    lines = []
    for document in documents:
        if named:
            lines.append(f"event: {document['type']}")
        lines += [f"data: {json.dumps(document, ensure_ascii=False)}", ""]
    if done:
        lines += ["data: [DONE]", ""]
    return "".join(line + end for line in lines).encode()


def _chat(delta: Any, finish: str | None = None, usage: Any = None, **more: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices, "usage": usage} | more


OPENAI_USAGE = {
    "prompt_tokens": 1117,
    "completion_tokens": 46,
    "total_tokens": 1163,
    "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 12},
}
CHAT = [
    _chat({"role": "assistant", "content": ""}),
    *(_chat({"content": word}) for word in WORDS),
    _chat({}, "stop"),
]
CALL = [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "get", "arguments": ""}}]
PART = [{"index": 0, "function": {"arguments": TEXT}}]

ANTHROPIC_USAGE = {
    "input_tokens": 25,
    "cache_creation_input_tokens": 100,
    "cache_read_input_tokens": 1000,
    "output_tokens": 1,
}
ANTHROPIC = [
    {"type": "message_start", "message": {"id": "msg_1", "content": [], "usage": ANTHROPIC_USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    *(
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        for word in WORDS
    ),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 15},
    },
    {"type": "message_stop"},
]

RESPONSE = {
    "object": "response",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": TEXT}]}],
    "usage": {
        "input_tokens": 328,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 52,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 380,
    },
}
RESPONSES = [
    {"type": "response.created", "response": {"object": "response", "output": [], "usage": None}},
    *({"type": "response.output_text.delta", "item_id": "msg_1", "delta": word} for word in WORDS),
    {"type": "response.output_text.done", "item_id": "msg_1", "text": TEXT},
    {"type": "response.completed", "response": RESPONSE},
]

SGLANG = [
    {
        "text": "".join(WORDS[: n + 1]),
        "meta_info": {"id": "1", "prompt_tokens": 7, "completion_tokens": n + 1, "cached_tokens": 4},
    }
    for n in range(len(WORDS))
]
CONTINUOUS = [
    _chat({"content": word}, usage={"prompt_tokens": 9, "completion_tokens": 2 * n + 2})
    for n, word in enumerate(WORDS)
]
PARTS = len(WORDS)

CHAT_USAGE = {"choices": [], "usage": OPENAI_USAGE}
RECORDED: dict[str, Recorded] = {
    "chat": Recorded(_stream(*CHAT, CHAT_USAGE, done=True), SSE, 1117, 1024, 46, TEXT, PARTS),
    "chat_crlf": Recorded(
        _stream(*CHAT, CHAT_USAGE, end="\r\n", done=True), SSE, 1117, 1024, 46, TEXT, PARTS
    ),
    "chat_cr": Recorded(
        b"\xef\xbb\xbf" + _stream(*CHAT, CHAT_USAGE, end="\r", done=True), SSE, 1117, 1024, 46, TEXT, PARTS
    ),
    "chat_without_usage": Recorded(_stream(*CHAT, done=True), SSE, None, 0, None, TEXT, PARTS),
    "chat_continuous_usage": Recorded(_stream(*CONTINUOUS, done=True), SSE, 9, 0, 10, TEXT, PARTS),
    "chat_tools": Recorded(
        _stream(_chat({"tool_calls": CALL}), _chat({"tool_calls": PART})), SSE, None, 0, None, "get" + TEXT, 2
    ),
    "chat_unfinished_event": Recorded(_stream(*CHAT, CHAT_USAGE).rstrip(), SSE, 1117, 1024, 46, TEXT, PARTS),
    "completions": Recorded(
        _stream(
            *({"object": "text_completion", "choices": [{"text": word}], "usage": None} for word in WORDS),
            {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 11}},
            done=True,
        ),
        *(SSE, 5, 0, 11, TEXT, PARTS),
    ),
    "responses": Recorded(_stream(*RESPONSES, named=True), SSE, 328, 64, 52, TEXT, PARTS),
    "anthropic": Recorded(_stream(*ANTHROPIC, named=True), SSE, 1125, 1000, 15, TEXT, PARTS),
    "anthropic_before_its_usage": Recorded(
        _stream(*ANTHROPIC[:-2], named=True), SSE, 1125, 1000, None, TEXT, PARTS
    ),
    "sglang": Recorded(_stream(*SGLANG, done=True), SSE, 7, 4, PARTS, TEXT, PARTS),
    "several_data_lines": Recorded(
        b': hi\n\ndata: {"choices":\ndata:[{"text":\ndata\ndata: "ab"}]}\nid: 7\n\n',
        SSE,
        None,
        0,
        None,
        "ab",
        1,
    ),
    "chat_body": Recorded(
        json.dumps(
            {"choices": [{"message": {"role": "assistant", "content": TEXT}}], "usage": OPENAI_USAGE}
        ).encode(),
        *(JSON, 1117, 1024, 46, TEXT, 1),
    ),
    "anthropic_body": Recorded(
        json.dumps(
            {"type": "message", "role": "assistant", "content": [{"type": "text", "text": TEXT}]}
            | {"usage": ANTHROPIC_USAGE | {"output_tokens": 15}}
        ).encode(),
        *(JSON, 1125, 1000, 15, TEXT, 1),
    ),
    "responses_body": Recorded(json.dumps(RESPONSE).encode(), JSON, 328, 64, 52, TEXT, 1),
    "sglang_body": Recorded(
        json.dumps([SGLANG[-1], SGLANG[-1]]).encode(), JSON, 14, 8, 2 * PARTS, 2 * TEXT, 2
    ),
    "embeddings_body": Recorded(
        json.dumps(
            {"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}
        ).encode(),
        *(JSON, 8, 0, None, "", 0),
    ),
}
