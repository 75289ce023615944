"""RateLimit header fields, and the responses to rejected requests.

429 is the caller's own limit, 503 is our load, 413 can never fit.
Fields follow draft-ietf-httpapi-ratelimit-headers-11, bodies RFC 9457, or both a dialect.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from math import ceil, inf

from autoglm_throttle.admission.counters import REPLACEABLE
from autoglm_throttle.asgi.app_fields import AppFields
from autoglm_throttle.asgi.dialects import (
    BODIES,
    LIMIT_NAMES,
    PROBLEM,
    SINGLE_LIMIT,
    STATUS,
    TOKEN_FIELDS,
    Field,
    content_type,
    encode,
    error_body,
    header_style,
    kind_of,
    legacy_fields,
    of_kind,
)
from autoglm_throttle.asgi.scope import SCOPE_KEY, Message, Scope, Send, attribute_to_throttle
from autoglm_throttle.limiting.decisions import Usages, decision_of
from autoglm_throttle.settings.groups.callers import HeaderStyle, ResponseSettings
from autoglm_throttle.types import (
    CONCURRENCY,
    BreakerCause,
    Decision,
    GuardRejection,
    LimitStatus,
    Reason,
    UserLimit,
)

TRY_AGAIN_LATER = 1013  # WebSocket close code (IANA registry, RFC 6455): the server is overloaded

# Bytes of the reason in a close frame, RFC 6455 section 5.5; a guard's name may be longer.
MAX_REASON_BYTES = 123

_DETAIL_TEXTS = {
    Reason.RATE: "The rate for {policy} priority requests is used up; try again in {seconds} s.",
    Reason.USER: "Your limit {policy} is used up; try again in {seconds} s.",
    Reason.CONCURRENCY: "Too many of your requests are in progress; try again in {seconds} s.",
    Reason.GPU: "The service has no capacity left; try again in {seconds} s.",
    Reason.QUEUE: "The service is busy; try again in {seconds} s.",
    Reason.BREAKER: "The service cannot answer this at present; try again in {seconds} s.",
    Reason.STORE: "User limits cannot be checked now; try again in {seconds} s.",
}

_QUEUE_DETAIL_TEXTS = {  # More precise texts, by the decision's detail
    "queue:slow": "The request would wait too long in the queue; try again in {seconds} s.",
    "queue:first_token": "The response would begin too late; try again in {seconds} s.",
    "queue:timeout": "The request timed out in the queue; try again in {seconds} s.",
    "queue:full": "The queue is full; try again in {seconds} s.",
    "queue:cap": "The concurrency limit is reached; try again in {seconds} s.",
    "queue:paused": "Too many requests wait for their clients; try again in {seconds} s.",
}

EXPOSED_FIELDS = (
    *("retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy"),
    *("x-degraded", "x-should-retry"),
    *(name for names in LIMIT_NAMES.values() for name in names),
    *TOKEN_FIELDS,
)
"""Every field name that a response may carry, for Access-Control-Expose-Headers."""

LEGACY_NAMES = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
THROTTLE_FIELDS = frozenset(name.encode() for name in (*EXPOSED_FIELDS, *LEGACY_NAMES))

_NO_RETRY = (b"x-should-retry", b"false")
MAX_CACHED_BODIES = 4096  # Bodies are prepared for each kind of rejection and each second of waiting
MAX_CACHED_TEMPLATES = 512  # There are a few per configured limit, so this only bounds mistakes

# Looking a number up costs a third of writing it.
_TABLE_SIZE = 1024
_NUMBERS = tuple(b"%d" % number for number in range(_TABLE_SIZE))
_TIMES = tuple(b";t=%d" % number for number in range(_TABLE_SIZE))
_RETRIES = tuple((b"retry-after", number) for number in _NUMBERS)
_LENGTHS = tuple((b"content-length", number) for number in _NUMBERS)
_DIGITS = tuple(b"%03d" % number for number in range(1000))
_MILLIS = tuple(b".%b}" % digits for digits in _DIGITS)

# Of a rejection: its status, its body, and the fields of its limit.
_Prepared = tuple[int, bytes, list[Field] | None]

# Characters that a string of RFC 9651 cannot contain as they are, and the percent sign.
_UNSAFE_IN_STRING = re.compile(r'[^ -~]|["\\%]')


class ResponseBuilder:
    """Turns decisions into header fields and bodies of a dialect.

    ``draw`` gives a number in 0..1 for the jitter.
    """

    def __init__(
        self,
        settings: ResponseSettings,
        dialect: str = PROBLEM,
        *,
        app_fields: AppFields | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._app_fields = app_fields  # None: the app adds its own
        self._style = style = header_style(settings.headers, dialect)
        self._sends_limit_fields = style in {HeaderStyle.IETF, HeaderStyle.LEGACY}
        self._sends_legacy_fields = style is HeaderStyle.LEGACY
        self._single_limit = SINGLE_LIMIT.get(style)
        self._make_document = BODIES[dialect]
        self._is_problem = dialect == PROBLEM
        self._dialect, self._type = dialect, content_type(dialect)
        self._max_s = settings.retry_after_max_s
        self._jitter = settings.retry_jitter
        self._draw = draw
        self._templates: dict[str, _ResponseTemplate] = {}
        # By detail, limit and seconds of waiting.
        self._bodies: dict[tuple[str, float, int], _Prepared] = {}

    def add_fields(self, message: Message, verdict: Usages | Decision) -> Message:  # noqa: C901, PLR0912 - a call costs 1 %
        """Return the start of an admitted response with our fields; the app's own of the same name win.

        It is the same message if no user limit applies.
        """
        if not self._sends_limit_fields:
            if self._single_limit is None or not verdict:
                return message
            if isinstance(verdict, tuple):
                limit, remaining, reset_s = verdict[0]
                fields = self._single_limit(limit.limit, remaining, reset_s)
            else:
                fields = self._single_fields(verdict, verdict.reset_after_s)
        elif isinstance(verdict, tuple) and len(verdict) == 1:
            limit, remaining, reset_s = verdict[0]
            template, seconds = self._templates.get(limit.name), ceil(reset_s)
            if template is None or template.limit != limit.limit:
                template = self._template(limit.name, limit.limit, limit.window_s)
            try:  # `item`, without the call
                state = template.prefix + _NUMBERS[remaining] + _TIMES[seconds]
            except IndexError:
                state = template.item(remaining, seconds)
            fields = [template.field, (b"ratelimit", state)]
        else:
            fields = self._limit_fields(
                [(each, each.remaining, each.reset_s) for each in verdict.limits]
                if isinstance(verdict, Decision)
                else verdict
            )
        if not fields:
            return message
        if self._sends_legacy_fields:
            fields += legacy_fields(decision_of(verdict))
        headers = message.get("headers")
        if type(headers) is not list:
            headers = list(headers or ())  # any iterable is allowed, also one that can be read only once
        for name, _ in headers:
            if name in THROTTLE_FIELDS:
                fields = _without(fields, headers)
                break
        message = message.copy()
        message["headers"] = headers + fields
        return message

    def _limit_fields(
        self,
        usages: Iterable[tuple[UserLimit | LimitStatus, int, float]],
        policy: bytes = b"",
        state: bytes = b"",
    ) -> list[Field]:
        """Return both fields of some limits, the deciding one first, behind the items that are given."""
        templates = self._templates
        for limit, remaining, reset_s in usages:
            template = templates.get(limit.name)
            if template is None or template.limit != limit.limit:
                template = self._template(limit.name, limit.limit, limit.window_s)
            item = template.item(remaining, ceil(reset_s))
            if state:
                policy += b", " + template.policy
                state += b", " + item
            else:
                policy, state = template.policy, item
        return [(b"ratelimit-policy", policy), (b"ratelimit", state)] if state else []

    def rejection(self, decision: Decision) -> tuple[int, list[Field], bytes]:
        """Return status, fields and body for a rejection."""
        wait, most_s = decision.retry_after_s, self._max_s
        if wait == inf:
            return self._final_rejection(decision)
        draw = self._draw
        spread_s, known_s = wait * (1.0 + self._jitter * draw()), wait
        if spread_s > most_s:
            spread_s, known_s = most_s, min(wait, most_s)
        # Retry-After: 0 would make clients return at once, and rounding down would be too early.
        retry_s, seconds = ceil(spread_s) or 1, ceil(known_s) or 1
        status, body, limit_fields = self._bodies.get(
            (decision.detail, decision.limit, seconds)
        ) or self._prepare(decision, seconds)
        if self._is_problem:  # the exact wait, in milliseconds, is formatted anew each time
            wait_ms = ceil(wait * 1e3)
            whole = wait_ms // 1000
            body += (_NUMBERS[whole] if whole < _TABLE_SIZE else b"%d" % whole) + _MILLIS[wait_ms % 1000]
        length, retry_ms = len(body), ceil(spread_s * 1e3) or 1
        whole = retry_ms // 1000
        fields = [
            _RETRIES[retry_s] if retry_s < _TABLE_SIZE else (b"retry-after", b"%d" % retry_s),
            (
                b"retry-after-ms",
                _NUMBERS[whole] + _DIGITS[retry_ms % 1000] if 0 < whole < _TABLE_SIZE else b"%d" % retry_ms,
            ),
            self._type,
            _LENGTHS[length] if length < _TABLE_SIZE else (b"content-length", b"%d" % length),
        ]
        if wait > most_s:
            # The capped Retry-After is earlier than the real wait: a retry then is futile.
            fields.insert(2, _NO_RETRY)
        if limit_fields is None or decision.others:
            limit_fields = self._rejected_fields(decision, seconds, wait)
        fields += limit_fields
        return status, fields, body

    def _prepare(self, decision: Decision, seconds: int) -> _Prepared:
        """Build, and keep, what all rejections by a limit with the same whole seconds of waiting have.

        The body of a problem document ends before the exact wait. The fields are None if they differ.
        """
        status = STATUS[decision.reason]
        body = encode(self._make_document(decision, status, self.sentence(decision), seconds))
        if self._is_problem:
            body = body[:-1] + b',"retry_after_s":'
        limit_fields = None
        if self._single_limit is None and not self._sends_legacy_fields and not decision.others:
            limit_fields = self._rejected_fields(decision, seconds, 0.0)
        prepared = status, body, limit_fields
        if len(self._bodies) < MAX_CACHED_BODIES:
            self._bodies[decision.detail, decision.limit, seconds] = prepared
        return prepared

    def _final_rejection(self, decision: Decision) -> tuple[int, list[Field], bytes]:
        """Return the response to a request that no wait can help."""
        # RFC 9110 has no "never": without Retry-After, x-should-retry tells clients to stop.
        status = STATUS[decision.reason]
        body = encode(self._make_document(decision, status, self.sentence(decision), 0))
        fields = [_NO_RETRY, self._type, (b"content-length", b"%d" % len(body))]
        return status, fields + self._rejected_fields(decision, 0, decision.reset_after_s), body

    def _rejected_fields(self, decision: Decision, seconds: int, reset_s: float) -> list[Field]:
        """Return the fields of the limits of a rejection, the deciding one first.

        ``seconds`` until it has a unit again; 0: it has units left.
        """
        if not (decision.window_s and self._sends_limit_fields):
            return self._single_fields(decision, reset_s)
        template = self._template(decision.policy, decision.limit, decision.window_s)
        remaining = 0 if seconds else int(decision.remaining)
        state = template.item(remaining, seconds or ceil(decision.reset_after_s))
        others = ((each, each.remaining, each.reset_s) for each in decision.others)
        fields = self._limit_fields(others, template.policy, state)
        return fields + legacy_fields(decision) if self._sends_legacy_fields else fields

    def sentence(self, decision: Decision) -> str:
        """Return the sentence on a rejection: the limit that rejected, and when to retry."""
        if decision.retry_after_s == inf:
            most = f"at most {decision.limit:.15g}"
            return f"The request costs more than {decision.policy} can ever admit: {most}."
        text = _QUEUE_DETAIL_TEXTS.get(decision.detail) or _DETAIL_TEXTS[decision.reason]
        return text.format(
            policy=decision.policy, seconds=ceil(min(decision.retry_after_s, self._max_s)) or 1
        )

    async def send_rejection(self, scope: Scope, send: Send, decision: Decision, cause: str = "load") -> None:
        """Send the response of a rejected request. The cause is passed to a fallback of an outer app."""
        for message in self.messages(scope, decision, cause):
            await send(message)

    async def send_body_timeout(self, scope: Scope, send: Send) -> None:
        """Answer a request whose body makes no progress with 408, and end its connection."""
        sentence = "The body of the request makes no progress."
        kind, body = error_body(self._dialect, 408, "Request Timeout", sentence, "body:timeout")
        fields = [kind, (b"content-length", b"%d" % len(body))]
        if str(scope.get("http_version", "1.1")).startswith("1"):  # later versions have no such field
            fields.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 408, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def messages(self, scope: Scope, decision: Decision, cause: str = "load") -> tuple[Message, ...]:
        """Return the messages of the response to a rejected request."""
        if SCOPE_KEY in scope:
            attribute_to_throttle(scope, cause if decision.reason in REPLACEABLE else "")
        status, fields, body = self.rejection(decision)
        if scope["type"] == "websocket":
            extensions = scope.get("extensions")
            if isinstance(extensions, dict) and "websocket.http.response" in extensions:
                start = {"type": "websocket.http.response.start", "status": status, "headers": fields}
                return start, {"type": "websocket.http.response.body", "body": body}
            reason = close_reason(decision)
            return ({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": reason},)
        if scope.get("method") == "HEAD":
            body = b""
        if self._app_fields is not None:
            self._app_fields.add_to(fields, scope)
        start = {"type": "http.response.start", "status": status, "headers": fields}
        return start, {"type": "http.response.body", "body": body}

    def _template(self, name: str, limit: float, window_s: int) -> _ResponseTemplate:
        """Return the prepared texts. Two limits with the same name, as in two plans, share one entry."""
        template = self._templates.get(name)
        if template is None or template.limit != limit:
            template = _ResponseTemplate(name, limit, window_s)
            # A full cache must not stop a changed limit from replacing its own entry.
            if name in self._templates or len(self._templates) < MAX_CACHED_TEMPLATES:
                self._templates[name] = template
        return template

    def _single_fields(self, decision: Decision, reset_s: float) -> list[Field]:
        """Return the fields of the deciding limit, in a style that sends only one; none without a limit."""
        if self._single_limit is None or not decision.window_s:
            return []
        has_units = decision.allowed or decision.reason is Reason.TOO_LARGE
        if not decision.others and decision.policy.startswith("user"):
            return self._single_limit(decision.limit, decision.remaining if has_units else 0, reset_s)
        deciding = (decision.policy, decision.limit, decision.remaining if has_units else 0, reset_s)
        others = [(each.name, each.limit, each.remaining, each.reset_s) for each in decision.others]
        fields: dict[bytes, list[Field]] = {}
        for name, limit, remaining, resets_s in (deciding, *others):
            kind = kind_of(self._style, name)
            if kind and kind not in fields:  # the first one of a kind is the fullest
                fields[kind] = of_kind(self._single_limit(limit, remaining, resets_s), kind)
        return [field for each in fields.values() for field in each]


def close_reason(decision: Decision) -> str:
    """Return the reason in the close frame of a rejected websocket."""
    return decision.detail.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def rejected_by(rejection: GuardRejection) -> Decision:
    """Build the decision that reports a guard's rejection to a client, without the guard's last error."""
    shed = rejection.cause is BreakerCause.SHED
    reason = Reason.GPU if shed else Reason.BREAKER
    detail = "gpu:shed" if shed else f"breaker:{rejection.name}"
    # A wait of 0 means that a slot may become free at any time; every waiting client would return at once.
    return Decision(False, reason, detail, reason.value, retry_after_s=max(1.0, rejection.retry_after_s))


class _ResponseTemplate:
    """Prepared texts of one limit."""

    __slots__ = ("field", "limit", "policy", "prefix")

    def __init__(self, name: str, limit: float, window_s: int) -> None:
        string = b'"%s"' % _UNSAFE_IN_STRING.sub("?", name).encode()
        self.limit = limit
        self.prefix = string + b";r="
        # For RateLimit-Policy; requests in progress have no window, but a quota unit.
        unit = b';qu="concurrent-requests"' if name.endswith(CONCURRENCY) else b";w=%d" % window_s
        self.policy = string + b";q=%d" % limit + unit
        self.field = (b"ratelimit-policy", self.policy)

    def item(self, remaining: int, seconds: int) -> bytes:
        """Return the limit's item for RateLimit: remaining units, and the seconds until the limit resets."""
        if remaining < _TABLE_SIZE and seconds < _TABLE_SIZE:
            return self.prefix + _NUMBERS[remaining] + _TIMES[seconds]
        return b"%b%d;t=%d" % (self.prefix, remaining, seconds)


def _without(fields: list[Field], headers: list[Field]) -> list[Field]:
    """Return the fields without those whose name stands in the headers."""
    taken = {name for name, _ in headers}
    return [field for field in fields if field[0] not in taken]
