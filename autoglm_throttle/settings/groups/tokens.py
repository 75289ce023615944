"""Settings of limits in tokens."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import choice, listed, number
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.settings.groups.callers import LIMITS_AT_MOST, REQUEST_PATH, USER_LIMITS, Limits
from autoglm_throttle.settings.problems import Problem
from autoglm_throttle.types import TokenLimit, TokenOverrun, TokenReserve

# Names of the limits of each kind of tokens: settings, and fields of the policies of plans and routes.
TOKEN_FIELDS: Final = {
    "tokens": "tokens_limit",
    "input": "tokens_input_limit",
    "output": "tokens_output_limit",
}


def named_limits(kind: str, limits: Limits | None) -> tuple[TokenLimit, ...] | None:
    """Return limits of a kind of tokens under their own names; None if there are none to replace others."""
    if limits is None:
        return None
    return tuple(TokenLimit(f"{kind}-{each.window_s}s", each.limit, each.window_s) for each in limits)


def token_limit_problems(values: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each field of token limits if there are too many together."""
    given = [name for name in TOKEN_FIELDS.values() if values[name]]
    if sum(len(values[name]) for name in given) <= LIMITS_AT_MOST:
        return []
    message = f"at most {LIMITS_AT_MOST} token limits together"
    return [Problem(name, message, "each request checks all limits of its user") for name in given]


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
    def by_kind(self) -> dict[str, Limits]:
        """The limits of each kind of tokens; an empty tuple means none."""
        return {"tokens": self.limit, "input": self.input_limit, "output": self.output_limit}
