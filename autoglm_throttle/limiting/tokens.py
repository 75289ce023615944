"""Costs of requests in tokens: estimated before a request runs, learned from the usage of earlier ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from math import ceil
from typing import Final

from autoglm_throttle.limiting.token_request import TokenRequest
from autoglm_throttle.limiting.token_usage import TokenUsage
from autoglm_throttle.types import TokenCost

RATIO_START: Final = 0.25  # Tokens of a byte of text, before any is known [four characters of English]
RATIO_GAIN: Final = 0.05  # Weight of the newest request once twenty are known
RATIO_RANGE: Final = (0.05, 1.0)
OUTPUTS_KEPT: Final = 200  # Newest outputs of a route and model, of which the quantile is taken
OUTPUTS_NEEDED: Final = 20  # Before the quantile replaces the default
LEARNED_AT_MOST: Final = 1000  # Pairs of a route and a model; the one unused for longest is forgotten


class TokenRatio:
    """Tokens of a byte of text, learned: a mean at first, then one that forgets old requests."""

    __slots__ = ("_learned", "value")

    def __init__(self) -> None:
        self.value: float = RATIO_START
        self._learned = 0

    def learn(self, tokens: int, text_bytes: int) -> None:
        """Learn from a text of known size."""
        if not text_bytes:
            return
        low, high = RATIO_RANGE
        ratio = min(max(tokens / text_bytes, low), high)
        self._learned += 1
        self.value += max(RATIO_GAIN, 1.0 / self._learned) * (ratio - self.value)


class LearnedTokens:
    """Ratios and outputs of one route and model."""

    __slots__ = ("_newest", "_sorted", "input_ratio", "output_ratio")

    def __init__(self) -> None:
        self.input_ratio: TokenRatio = TokenRatio()
        self.output_ratio: TokenRatio = TokenRatio()
        self._newest: deque[int] = deque()
        self._sorted: list[int] = []

    def add_output(self, tokens: int) -> None:
        """Add the tokens of one answer."""
        if len(self._newest) == OUTPUTS_KEPT:
            del self._sorted[bisect_left(self._sorted, self._newest.popleft())]
        self._newest.append(tokens)
        insort(self._sorted, tokens)

    def output(self, quantile: float) -> int | None:
        """Return a quantile of the newest outputs; None: too few are known."""
        known = self._sorted
        return known[ceil(quantile * len(known)) - 1] if len(known) >= OUTPUTS_NEEDED else None


_UNKNOWN: Final = LearnedTokens()  # What is taken for a route and model of which nothing is known


class TokenEstimator:
    """Estimates the tokens of requests by route and model, in bounded time and memory.

    Args:
        quantile: share of answers, 0.01..1, that is to be no longer than its estimate.
        default_output: output tokens of a request of which nothing is known, >= 0.
        media_tokens: input tokens of an image, a sound or a file.
        reserves_maximum: whether a stated maximum is reserved; else the learned quantile if it is less.
    """

    def __init__(
        self, quantile: float, default_output: int, media_tokens: int, *, reserves_maximum: bool = True
    ) -> None:
        self._reserves_maximum = reserves_maximum
        self._quantile = quantile
        self._default_output = default_output
        self._media_tokens = media_tokens
        self._learned: OrderedDict[tuple[str, str], LearnedTokens] = OrderedDict()

    def __len__(self) -> int:
        return len(self._learned)

    def estimate(self, route: str, request: TokenRequest) -> TokenCost:
        """Return the tokens to reserve: of the output the stated maximum, else the learned quantile."""
        learned = self._learned.get((route, request.model), _UNKNOWN)
        text = ceil(request.text_bytes * learned.input_ratio.value)
        tokens = text + request.tokens + request.media_parts * self._media_tokens
        if not request.generates:
            return TokenCost(tokens, 0)
        most = request.max_output
        if most is not None and self._reserves_maximum:
            return TokenCost(tokens, most)
        output = learned.output(self._quantile)
        if output is None:
            return TokenCost(tokens, self._default_output if most is None else most)
        return TokenCost(tokens, output if most is None else min(output, most))

    def counted_output(self, route: str, request: TokenRequest, usage: TokenUsage) -> int:
        """Return the output tokens of a response that was not reported to its end."""
        if not request.generates:
            return 0
        learned = self._learned.get((route, request.model), _UNKNOWN)
        counted = usage.output_at_least(learned.output_ratio.value)
        return counted if request.max_output is None else min(counted, request.max_output)

    def learn(self, route: str, request: TokenRequest, usage: TokenUsage) -> None:
        """Learn from a complete response that reports its tokens."""
        key = route, request.model
        learned = self._learned.get(key)
        if learned is None:
            if usage.input is None:
                return
            learned = self._learned[key] = LearnedTokens()
            if len(self._learned) > LEARNED_AT_MOST:
                self._learned.popitem(last=False)
        self._learned.move_to_end(key)
        if usage.input is not None and not (request.media_parts or request.tokens):
            learned.input_ratio.learn(usage.input, request.text_bytes)
        output = usage.output
        if output is not None and request.generates:
            learned.add_output(output)
            learned.output_ratio.learn(output, usage.text_size)
