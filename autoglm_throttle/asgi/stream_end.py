"""Ends the event stream of an LLM service early, as if the answer had reached its maximum length."""

from __future__ import annotations

import json
from typing import Any

from autoglm_throttle.limiting.token_usage import DONE, parsed

_DONE = b"data: %s\n\n" % DONE


def end_of_stream(first: bytes | bytearray, last: bytes | bytearray, output_tokens: int) -> bytes | None:
    """Return the events that end a stream after its event ``last``, in the form of its dialect.

    Args:
        first: data of the first event of the stream.
        last: data of the newest one.
        output_tokens: tokens of the answer so far.

    Returns:
        The bytes of the events; None: the form of the stream is not known, or it is about to end anyway.
    """
    document, begun = parsed(last), parsed(first)
    if not isinstance(document, dict) or not isinstance(begun, dict):
        return None
    choices, kind = document.get("choices"), document.get("type")
    if isinstance(choices, list):
        return _end_of_choices(document, choices)
    if isinstance(document.get("meta_info"), dict) and not document["meta_info"].get("finish_reason"):
        reason = {"type": "length", "length": output_tokens}
        return _event(document | {"meta_info": document["meta_info"] | {"finish_reason": reason}}) + _DONE
    if begun.get("type") == "message_start" and kind in {"content_block_delta", "content_block_start"}:
        return _end_of_message(document.get("index", 0), output_tokens)
    response = begun.get("response")
    if isinstance(response, dict) and isinstance(kind, str) and kind.endswith(".delta"):
        details = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        event = {"type": "response.incomplete", "response": response | details}
        if isinstance(document.get("sequence_number"), int):
            event["sequence_number"] = document["sequence_number"] + 1
        return _named(event)
    return None


def _end_of_choices(document: dict[str, Any], choices: list[Any]) -> bytes | None:
    """End a stream of OpenAI's chat or completions, unless its answer has ended."""
    ends = []
    for choice in choices:
        if not isinstance(choice, dict) or choice.get("finish_reason"):
            return None
        part: dict[str, Any] = {"text": ""} if "text" in choice else {"delta": {}}
        ends.append({"index": choice.get("index", 0), **part, "logprobs": None, "finish_reason": "length"})
    return _event(document | {"choices": ends}) + _DONE if ends else None


def _end_of_message(index: int, output_tokens: int) -> bytes:
    """End a stream of Anthropic's messages, inside a content block."""
    delta = {"stop_reason": "max_tokens", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "content_block_stop", "index": index},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output_tokens}},
        {"type": "message_stop"},
    ]
    return b"".join(map(_named, events))


def _named(document: dict[str, Any]) -> bytes:
    return b"event: %s\n" % document["type"].encode() + _event(document)


def _event(document: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(document, separators=(",", ":")).encode()
