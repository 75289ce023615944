"""The demand for tokens in the JSON body of a request to an LLM service: text, media, and maxima."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.limiting.token_usage import SAMPLES_AT_MOST, TOKENS_AT_MOST, content_size

MODEL_CHARACTERS: Final = 200  # A longer name is truncated: clients choose it
# Fields of a body that hold its input: of OpenAI, Anthropic, and SGLang's native interface.
_INPUTS: Final = (
    *("messages", "prompt", "input", "system", "instructions", "tools", "functions", "documents", "query"),
    *("text", "input_ids"),
)
# In the order of precedence; SGLang's stands inside ``sampling_params``.
_MAXIMA: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What decides on the tokens of a request."""

    model: str = ""
    text_bytes: int = 0  # Of its decoded texts, in UTF-8
    tokens: int = 0  # Given as numbers, in place of text
    media_parts: int = 0  # Images, sounds and files
    max_output: int | None = None  # Of all its answers together; None: it states none
    generates: bool = True  # False: an embedding or the like


def token_request(document: object, *, generates: bool = True) -> TokenRequest | None:
    """Read a body; None: it is none that a service would accept, so nothing is known of it."""
    if not isinstance(document, dict):
        return None
    parameters = document.get("sampling_params")
    if not isinstance(parameters, dict):
        parameters = document
    samples = _samples(document, parameters)
    stated = [document.get(name, parameters.get(name)) for name in _MAXIMA]
    most = next((value for value in stated if value is not None), None)
    if samples is None or not (most is None or (_is_whole(most) and 0 <= most <= TOKENS_AT_MOST)):
        return None
    size = tokens = media = 0
    for name in _INPUTS:
        value = document.get(name)
        if value is not None:
            more_bytes, more_tokens, more_media = content_size(value)
            size, tokens, media = size + more_bytes, tokens + more_tokens, media + more_media
    model = document.get("model")
    return TokenRequest(
        model[:MODEL_CHARACTERS] if isinstance(model, str) else "",
        size,
        tokens,
        media,
        None if most is None else most * samples,
        generates,
    )


def _samples(document: dict[str, Any], parameters: dict[str, Any]) -> int | None:
    """Return the answers that are generated; None: not 1 to 128."""
    numbers = [document.get("n", parameters.get("n")), document.get("best_of")]
    given = [number for number in numbers if number is not None]
    if not all(_is_whole(number) and 1 <= number <= SAMPLES_AT_MOST for number in given):
        return None
    return max(given, default=1)


def _is_whole(value: object) -> bool:
    return type(value) is int
