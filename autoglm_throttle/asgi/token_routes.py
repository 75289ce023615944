"""Admission of requests that cost tokens: reads the body, estimates the cost, and reserves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.admission.permit import Permit, ProvisionalDemand, Rejection
from autoglm_throttle.asgi.scope import App, Scope
from autoglm_throttle.asgi.token_meter import TokenMeter, TokenRules
from autoglm_throttle.events import RateLimitedLogger
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.limiting.token_request import TokenRequest, token_request
from autoglm_throttle.limiting.token_usage import TOKENS_AT_MOST, is_count, parsed
from autoglm_throttle.limiting.tokens import TokenEstimator
from autoglm_throttle.types import TokenOverrun, TokenReserve

if TYPE_CHECKING:
    from autoglm_throttle.asgi.receive import RequestBody
    from autoglm_throttle.settings.groups.tokens import TokenSettings
    from autoglm_throttle.throttle import Throttle
    from autoglm_throttle.types import Demand

# Ends of the paths of requests that generate no text.
_EMBEDDINGS: Final = ("/embeddings", "/rerank", "/score", "/classify", "/pooling")

TOKENIZED_BYTES: Final = 65_536  # A longer text is estimated: to count it would delay all other requests
TokensOf: TypeAlias = Callable[[dict[str, Any]], int]


class TokenRoutes:
    """Admits the requests of the routes that cost tokens."""

    def __init__(
        self, throttle: Throttle, settings: TokenSettings, tokens_of: TokensOf | None = None
    ) -> None:
        self._tokens_of = tokens_of
        self._logger = RateLimitedLogger("tokens", throttle.admission.parts.settlement.clock)
        self.most_bytes: int = settings.body_max_bytes
        self._throttle = throttle
        estimator = TokenEstimator(
            settings.quantile,
            settings.default_output,
            settings.per_media,
            reserves_maximum=settings.reserve is TokenReserve.EXPLICIT,
        )
        # A dry run ends no response.
        overrun = TokenOverrun.ALLOW if throttle.settings.control.dry_run else settings.overrun
        self._rules = TokenRules(estimator, throttle, overrun)

    def rejection(self, demand: Demand) -> Rejection | None:
        """Return, and count, the rejection that no body can change: then it is not read."""
        admission = self._throttle.admission
        rejected = admission.peek(demand)
        if rejected is None:
            return None
        if isinstance(demand, ProvisionalDemand) and rejected.decision.reason in REPLACEABLE:
            return rejected  # counted with what replaces it
        return admission.reject(demand, rejected.decision)

    async def admit(
        self, app: App, demand: Demand, work_class: str, scope: Scope, body: RequestBody
    ) -> tuple[Permit | Ticket | Rejection, App]:
        """Reserve the tokens of a request, charge it, and request its slot; and return the app to run."""
        admission, request = self._throttle.admission, self._request(scope, body)
        reserved = self._rules.estimator.estimate(work_class, request)
        charged = await admission.charge(demand, work_class, tokens=reserved)
        # A rejection, or a permit of a dry run, which has charged nothing.
        if not isinstance(charged, Ticket):
            return charged, app
        meter = TokenMeter(app, self._rules, work_class, request, reserved, charged.charges)
        return admission.try_slot(charged), meter

    def _request(self, scope: Scope, body: RequestBody) -> TokenRequest:
        generates = not scope["path"].rstrip("/").endswith(_EMBEDDINGS)
        content = None if _is_encoded(scope["headers"]) else body.content
        document = None if content is None else parsed(content)
        request = token_request(document, generates=generates)
        if request is None:  # the app answers an error, or finds more in it: the bytes stand for its text
            return TokenRequest(text_bytes=body.received_bytes, generates=generates)
        return self._counted(document, request)

    def _counted(self, document: Any, request: TokenRequest) -> TokenRequest:  # noqa: ANN401 - JSON
        """Return a request with its tokens as `tokens_of` counts them, if that is given and succeeds."""
        if self._tokens_of is None or request.text_bytes > TOKENIZED_BYTES:
            return request
        try:
            tokens = self._tokens_of(document)
        except Exception as error:  # noqa: BLE001 - of the user's tokenizer
            self._logger.warn("tokenizer", "tokens_of failed, the estimate is used", error=error)
            return request
        if not is_count(tokens):
            kind = type(tokens).__name__
            wanted = f"a whole number from 0 to {TOKENS_AT_MOST}"
            self._logger.warn("tokenizer", f"tokens_of returned {kind}, not {wanted}; the estimate is used")
            return request
        return replace(request, text_bytes=0, tokens=tokens)


def _is_encoded(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"content-encoding" for name, _ in headers)
