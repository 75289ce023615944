"""A service with the interfaces of OpenAI and Anthropic and fixed answers, for tests of their packages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TEXT = ("an ", "answer")
ARGUMENTS = {"city": "Bonn"}


def _events(events: Iterable[tuple[str, str]]) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        for name, data in events:
            yield (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()

    return StreamingResponse(parts(), media_type="text/event-stream")


def _chunk(kind: str, part: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": reason, "delta" if kind.endswith("chunk") else "message": part}
    return {"id": "chatcmpl-1", "object": kind, "created": 0, "model": "m", "choices": [choice]}


async def chat(request: Request) -> Response:
    """Answer as ``/v1/chat/completions`` of OpenAI does."""
    asked = await request.json()
    if asked.get("stream"):
        chunks = [_chunk("chat.completion.chunk", {"role": "assistant", "content": part}) for part in TEXT]
        chunks.append(_chunk("chat.completion.chunk", {}, "stop"))
        return _events([*(("", json.dumps(chunk)) for chunk in chunks), ("", "[DONE]")])
    message: dict[str, Any] = {"role": "assistant", "content": "".join(TEXT)}
    if asked.get("tools"):
        function = {"name": asked["tools"][0]["function"]["name"], "arguments": json.dumps(ARGUMENTS)}
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
    return JSONResponse(_chunk("chat.completion", message, "tool_calls" if asked.get("tools") else "stop"))


async def messages(request: Request) -> Response:
    """Answer as ``/v1/messages`` of Anthropic does."""
    asked = await request.json()
    message: dict[str, Any] = {"id": "msg-1", "type": "message", "role": "assistant", "model": "m"}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    if asked.get("stream"):
        events: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, "content": []}}]
        events.append(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        )
        for part in TEXT:
            delta = {"type": "text_delta", "text": part}
            events.append({"type": "content_block_delta", "index": 0, "delta": delta})
        events += [{"type": "content_block_stop", "index": 0}, {"type": "message_stop"}]
        return _events((event["type"], json.dumps(event)) for event in events)
    content: list[dict[str, Any]] = [{"type": "text", "text": "".join(TEXT)}]
    if asked.get("tools"):
        name = asked["tools"][0]["name"]
        content.append({"type": "tool_use", "id": "call-1", "name": name, "input": ARGUMENTS})
    return JSONResponse({**message, "content": content, "stop_reason": "end_turn"})


app = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/messages", messages, methods=["POST"]),
    ]
)
