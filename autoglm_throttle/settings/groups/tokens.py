"""Settings of limits in tokens."""

from typing import Annotated, ClassVar

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import choice, listed, number
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.settings.groups.callers import REQUEST_PATH, USER_LIMITS, Limits
from autoglm_throttle.types import TokenLimit, TokenOverrun, TokenReserve


class TokenSettings(Group):
    """Settings of limits in tokens, for services that run language models."""

    prefix: ClassVar[str] = "tokens_"
    environment: ClassVar[str] = "LIMIT"

    limit: Annotated[Limits, USER_LIMITS] = ()
    """Limit of the input and output tokens of one user, reserved before a request runs and settled after it;
    off until set."""
    input_limit: Annotated[Limits, USER_LIMITS] = ()
    """The same for input tokens alone."""
    output_limit: Annotated[Limits, USER_LIMITS] = ()
    """The same for output tokens alone: with maxima that clients state it is never exceeded."""
    routes: Annotated[tuple[str, ...], listed(REQUEST_PATH)] = (
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
    )
    """Paths of POST requests that cost tokens: their bodies are read. [the interfaces of OpenAI and
    Anthropic]"""
    body_max_bytes: Annotated[int, f.whole(1024, 16_777_216, "bytes")] = 1_048_576
    """Longest body that is read; a longer one is reserved as one of which nothing is known. [to parse 1 MiB
    takes 0.4 to 0.8 ms]"""
    per_media: Annotated[int, f.whole(0, 1_000_000, "tokens")] = 1000
    """Input tokens of an image, a sound or a file, until the usage is known. [convention]"""
    reserve: Annotated[TokenReserve, choice(TokenReserve)] = TokenReserve.EXPLICIT
    """Output tokens reserved for a request that states a maximum: all of it (explicit), or the learned length
    of answers if it is less (learned), which admits more requests at once."""
    quantile: Annotated[float, number(0.01, 1, "share")] = 0.8
    """Share of the newest answers of a route and model that are no longer than what is reserved for the next
    one without a maximum."""
    default_output: Annotated[int, f.whole(0, 10_000_000, "tokens")] = 512
    """Output tokens reserved without a maximum until 20 answers of the route and model are known."""
    overrun: Annotated[TokenOverrun, choice(TokenOverrun)] = TokenOverrun.ALLOW
    """An event stream that outgrows its reservation while its user has no tokens left: it goes on (allow),
    ends as if the answer had reached its maximum length (stop), or its connection is closed (abort)."""

    @property
    def by_kind(self) -> dict[str, tuple[TokenLimit, ...]]:
        """The limits of each kind of tokens that has any."""
        given = {"tokens": self.limit, "input": self.input_limit, "output": self.output_limit}
        return {
            kind: tuple(TokenLimit(f"{kind}-{each.window_s}s", each.limit, each.window_s) for each in limits)
            for kind, limits in given.items()
            if limits
        }
