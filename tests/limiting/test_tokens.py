"""Costs in tokens: what a body asks for, what is estimated from it, and what usage teaches."""

from __future__ import annotations

import random
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.limiting.token_request import MODEL_CHARACTERS, TokenRequest, token_request
from autoglm_throttle.limiting.token_usage import TokenUsage
from autoglm_throttle.limiting.tokens import (
    LEARNED_AT_MOST,
    OUTPUTS_KEPT,
    OUTPUTS_NEEDED,
    TokenEstimator,
)
from autoglm_throttle.testing.simulated_llm import draw_lengths
from autoglm_throttle.types import TokenCost

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
ENGLISH_BYTES = 4.4  # Of a token, about as with the tokenizer of Llama 3
TEMPLATE_TOKENS = 11  # That a chat template adds


def read(**body: Any) -> TokenRequest:
    request = token_request(body)
    assert request is not None
    return request


def estimator(**values: Any) -> TokenEstimator:
    return TokenEstimator(**{"quantile": 0.8, "default_output": 512, "media_tokens": 1000} | values)


def used(tokens: int | None, output: int | None, text: int = 0) -> TokenUsage:
    usage = TokenUsage()
    usage.text_bytes = text
    usage.report({"prompt_tokens": tokens, "completion_tokens": output})
    return usage


def test_texts_count_by_their_bytes() -> None:
    messages = [
        {"role": "system", "content": "Hello"},
        {"role": "user", "content": [{"type": "text", "text": "你"}]},
    ]
    assert read(messages=messages).text_bytes == 5 + 3
    assert read(system="ab", prompt=["c", "de"], input="f", instructions="g", temperature=0.5).text_bytes == 7
    assert read(prompt="\ud800").text_bytes == 3


def test_tokens_and_media_count_apart() -> None:
    assert read(prompt=[[1, 2, 3], [4]]) == TokenRequest(tokens=4)
    inline = {"type": "text", "text": "data:image/png;base64," + "A" * 100_000}
    content = [IMAGE, {"type": "input_audio", "input_audio": {"data": "A" * 999}}, inline, "data: no media"]
    assert read(messages=[{"content": content}]) == TokenRequest(text_bytes=14, media_parts=3)


@pytest.mark.parametrize(
    ("body", "most"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"max_output_tokens": 9}, 9),
        ({"sampling_params": {"max_new_tokens": 3, "n": 2}}, 6),
        ({"sampling_params": [{"max_new_tokens": 3}]}, None),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 7, "n": 2, "best_of": 4}, 28),
        ({"max_tokens": 0}, 0),
    ],
)
def test_maximum_counts_for_each_answer(body: Any, most: int | None) -> None:
    assert read(**body).max_output == most


@pytest.mark.parametrize(
    "body",
    [
        *({"max_tokens": value} for value in (-1, 10**8, "7", 1.5, True)),
        *({"n": value} for value in (0, 129, -1, "2", 1.0)),
        {"best_of": 0},
    ],
)
def test_wrong_number_makes_the_body_unknown(body: Any) -> None:
    assert token_request(body) is None


@pytest.mark.parametrize("body", [None, [], "text", 7])
def test_body_that_is_no_object_is_unknown(body: Any) -> None:
    assert token_request(body) is None


def test_model_is_a_bounded_text() -> None:
    assert read(model="a" * 300).model == "a" * MODEL_CHARACTERS
    assert read(model=["a"]).model == ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["type", "text"]), inner),
    max_leaves=30,
)


@given(
    st.dictionaries(st.sampled_from(["messages", "model", "n", "max_tokens", "prompt", "tools"]), json_values)
)
def test_any_body_is_read_without_an_exception(body: Any) -> None:
    request = token_request(body)
    if request is not None:
        cost = estimator().estimate("route", request)
        assert min(cost) >= 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_estimate_grows_with_text_and_maximum(size: int, more: int, most: int, higher: int) -> None:
    small = estimator().estimate("", TokenRequest(text_bytes=size, max_output=most))
    large = estimator().estimate("", TokenRequest(text_bytes=size + more, max_output=most + higher))
    assert small.input <= large.input
    assert small.output <= large.output


def test_estimate_of_an_unknown_model() -> None:
    cost = estimator().estimate("", TokenRequest(text_bytes=401, tokens=10, media_parts=2))
    assert cost == TokenCost(101 + 10 + 2000, 512)
    assert cost.total == 2623


def test_embedding_has_no_output() -> None:
    request = token_request({"input": "abcd"}, generates=False)
    assert request is not None
    tested = estimator()
    assert tested.estimate("", request) == TokenCost(1, 0)
    tested.learn("", request, used(2, 9))
    assert tested.estimate("", request) == TokenCost(2, 0)


def test_stated_maximum_or_the_learned_quantile_is_reserved() -> None:
    dense = estimator(reserves_maximum=False)
    for tested in (estimator(), dense):
        for output in range(1, OUTPUTS_NEEDED + 1):
            tested.learn("", TokenRequest(), used(1, 10 * output))
    open_ended, stated = TokenRequest(), TokenRequest(max_output=4096)
    assert estimator().estimate("", stated).output == 4096
    assert tested.estimate("", open_ended).output == 160  # 16 of 20 are no longer
    assert dense.estimate("", stated).output == 160
    assert dense.estimate("", TokenRequest(max_output=7)).output == 7
    assert estimator(reserves_maximum=False).estimate("", stated).output == 4096


def test_ratio_is_learned_for_each_route_and_model() -> None:
    tested, request = estimator(), TokenRequest("a", 100)
    tested.learn("chat", request, used(50, 1))
    assert tested.estimate("chat", request).input == 50
    assert tested.estimate("chat", TokenRequest("b", 100)).input == 25
    assert tested.estimate("other", request).input == 25


def test_ratio_is_bounded_and_media_teach_nothing() -> None:
    tested = estimator()
    tested.learn("", TokenRequest(text_bytes=10), used(1000, None))
    assert tested.estimate("", TokenRequest(text_bytes=10)).input == 10
    tested.learn("", TokenRequest(text_bytes=10_000), used(1, None))
    tested.learn("", TokenRequest(text_bytes=10, media_parts=1), used(9, None))
    tested.learn("", TokenRequest(text_bytes=0), used(9, None))
    assert tested.estimate("", TokenRequest(text_bytes=1000)).input == 525


def test_response_without_usage_teaches_nothing() -> None:
    tested = estimator()
    tested.learn("", TokenRequest(text_bytes=10), TokenUsage())
    assert len(tested) == 0


def test_newest_outputs_replace_old_ones() -> None:
    tested = estimator(quantile=1.0)
    for output in (999, *[5] * OUTPUTS_KEPT):
        tested.learn("", TokenRequest(), used(1, output))
    assert tested.estimate("", TokenRequest()).output == 5


def test_models_are_bounded_and_the_unused_one_is_forgotten() -> None:
    tested, kept = estimator(), TokenRequest("kept", 100)
    tested.learn("", kept, used(50, 1))
    for n in range(2 * LEARNED_AT_MOST):
        tested.learn("", TokenRequest(str(n), 100), used(60, 1))
        tested.learn("", kept, used(50, 1))
    assert len(tested) == LEARNED_AT_MOST
    assert tested.estimate("", kept).input == 50
    assert tested.estimate("", TokenRequest("0", 100)).input == 25


def test_counted_output_follows_the_learned_ratio_up_to_the_maximum() -> None:
    tested, cut = estimator(), TokenUsage()
    cut.events, cut.text_bytes = 2, 100
    assert tested.counted_output("", TokenRequest(), cut) == 25
    tested.learn("", TokenRequest(), used(1, 50, text=100))
    assert tested.counted_output("", TokenRequest(), cut) == 50
    assert tested.counted_output("", TokenRequest(max_output=30), cut) == 30


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bytes_of_token", [ENGLISH_BYTES, 2.2])
def test_estimates_are_accurate_after_200_requests(seed: int, bytes_of_token: float) -> None:
    rng, tested = random.Random(seed), estimator()
    inputs, under = [], 0
    for n in range(1200):
        lengths = draw_lengths(rng)
        size = round((lengths.prompt - TEMPLATE_TOKENS) * bytes_of_token * rng.lognormvariate(0.0, 0.15))
        request = TokenRequest("llama", max(1, size))
        cost = tested.estimate("POST /v1/chat", request)
        if n >= 200:
            inputs.append(cost.input / lengths.prompt)
            under += cost.output < lengths.output
        tested.learn("POST /v1/chat", request, used(lengths.prompt, lengths.output))
    assert median(inputs) == pytest.approx(1.0, abs=0.1)
    assert under / len(inputs) <= 0.25


def test_event_with_a_message_beside_its_text_is_counted_each_time() -> None:
    usage = TokenUsage()
    for _ in range(2):
        usage.add_event(b'{"choices":[{"delta":{"content":"x"}}],"message":{"id":"1"}}')
    assert (usage.events, usage.text_bytes) == (2, 2)
