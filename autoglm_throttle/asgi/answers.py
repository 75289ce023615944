"""What clients see: RateLimit fields, and the answer to a refused request.

429 is the caller's own limit, 503 is our load, 413 can never fit.
Fields follow draft-ietf-httpapi-ratelimit-headers-11, bodies RFC 9457.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from math import ceil, isfinite, isinf

from autoglm_throttle.model import Decision, Reason, WindowState

Field = tuple[bytes, bytes]

STATUS = {Reason.RATE: 429, Reason.USER: 429, Reason.GPU: 503, Reason.TOO_LARGE: 413}

_TYPES = {
    429: ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Too Many Requests"),
    503: (
        "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        "Service Unavailable",
    ),
    413: ("about:blank", "Content Too Large"),
}

_SENTENCES = {
    Reason.RATE: "The rate for {policy} priority requests is used up; try again in %d s.",
    Reason.USER: "Your limit {policy} is used up; try again in %d s.",
    Reason.GPU: "The service has no capacity left; try again in %d s.",
}

NAMES = ("retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy", "x-should-retry")
"""Every field name that an answer may carry, for Access-Control-Expose-Headers."""

LEGACY_NAMES = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")

_NO_RETRY = (b"x-should-retry", b"false")
_PROBLEM = (b"content-type", b"application/problem+json")

_UNQUOTABLE = re.compile(r'[^ -~]|["\\%]')
"""What cannot stand in a string of RFC 9651 as it is, and the percent sign, which the forms below fill in."""

FORMS_KEPT = 512
"""Prebuilt bodies and policies kept; there are a few per configured limit, so this only bounds mistakes."""


class Answers:
    """Turns decisions into header fields and bodies.

    Args:
        dialect: ``ietf``, ``legacy`` (adds ``X-RateLimit-*``) or ``none`` (only Retry-After).
        retry_after_max_s: greatest Retry-After sent, >= 1 s.
        jitter: share by which a Retry-After is stretched at random, so that clients do not return together.
        draw: gives a number in 0..1.
    """

    def __init__(
        self,
        dialect: str = "ietf",
        *,
        retry_after_max_s: float = 120.0,
        jitter: float = 0.1,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._publishes = dialect != "none"
        self._legacy = dialect == "legacy"
        self._max_s = retry_after_max_s
        self._jitter = jitter
        self._draw = draw
        self._policies: dict[str, dict[float, tuple[bytes, bytes]]] = {}
        self._bodies: dict[str, tuple[bytes, bytes]] = {}

    def fields(self, decision: Decision) -> list[Field]:
        """The fields of an admitted answer; empty where no user limit applies."""
        if not decision.window_s or not self._publishes:
            return []
        item, policy = self._policy(decision.policy, decision.limit, decision.window_s)
        state = item % (decision.remaining, ceil(decision.reset_after_s))
        if decision.others:
            policy, state = self._listed(policy, state, decision.others)
        if self._legacy:
            return [(b"ratelimit-policy", policy), (b"ratelimit", state), *_legacy(decision)]
        return [(b"ratelimit-policy", policy), (b"ratelimit", state)]

    def refusal(self, decision: Decision) -> tuple[int, list[Field], bytes]:
        """Status, fields and body for a refused decision."""
        status = STATUS[decision.reason]
        wait = decision.retry_after_s
        if isinf(wait):
            seconds = 0
            body = self._too_large(decision)
            fields = [_NO_RETRY]
        else:
            stretched = wait * (1.0 + self._jitter * self._draw())
            capped = stretched if stretched < self._max_s else self._max_s
            seconds = ceil(capped) or 1
            body = self._body(decision, status, seconds)
            fields = [(b"retry-after", b"%d" % seconds), (b"retry-after-ms", b"%d" % (ceil(capped * 1e3) or 1))]
            if wait > self._max_s:
                fields.append(_NO_RETRY)
        fields += (_PROBLEM, (b"content-length", b"%d" % len(body)))
        if decision.window_s and self._publishes:
            item, policy = self._policy(decision.policy, decision.limit, decision.window_s)
            state = item % ((0, seconds) if seconds else (decision.remaining, ceil(decision.reset_after_s)))
            if decision.others:
                policy, state = self._listed(policy, state, decision.others)
            fields += ((b"ratelimit-policy", policy), (b"ratelimit", state))
            if self._legacy:
                fields += _legacy(decision)
        return status, fields, body

    def _listed(self, policy: bytes, state: bytes, others: tuple[WindowState, ...]) -> tuple[bytes, bytes]:
        """Both fields with the items of the other limits behind the deciding one's."""
        for other in others:
            item, its_policy = self._policy(other.name, other.limit, other.window_s)
            policy += b", " + its_policy
            state += b", " + item % (other.remaining, ceil(other.reset_s))
        return policy, state

    def _policy(self, name: str, limit: float, window_s: int) -> tuple[bytes, bytes]:
        """A limit's item for RateLimit, to be filled in, and its item for RateLimit-Policy."""
        by_limit = self._policies.get(name)
        if by_limit is not None and limit in by_limit:
            return by_limit[limit]
        quoted = b'"%s"' % _UNQUOTABLE.sub("?", name).encode()
        made = (quoted + b";r=%d;t=%d", quoted + b";q=%d;w=%d" % (limit, window_s))
        if sum(map(len, self._policies.values())) < FORMS_KEPT:
            self._policies.setdefault(name, {})[limit] = made
        return made

    def _body(self, decision: Decision, status: int, seconds: int) -> bytes:
        known = self._bodies.get(decision.detail)
        if known is None:
            known = _prepare(decision, status)
            if len(self._bodies) < FORMS_KEPT:
                self._bodies[decision.detail] = known
        front, back = known
        return b"%b%d%b%.3f}" % (front, seconds, back, ceil(decision.retry_after_s * 1e3) / 1e3)

    def _too_large(self, decision: Decision) -> bytes:
        sentence = (
            f"The request costs more than {decision.policy} can ever admit: at most {decision.limit:.15g}."
        )
        return json.dumps(_problem(decision, 413, sentence), separators=(",", ":")).encode()


def _problem(decision: Decision, status: int, sentence: str) -> dict[str, object]:
    uri, title = _TYPES[status]
    return {
        "type": uri,
        "title": title,
        "status": status,
        "detail": sentence,
        "violated-policies": [decision.policy],
        "reason": decision.detail,
    }


def _prepare(decision: Decision, status: int) -> tuple[bytes, bytes]:
    """The body for this kind of refusal, cut where the seconds and the exact wait go."""
    sentence = _SENTENCES[decision.reason].format(policy=decision.policy.replace("%", "?"))
    document = _problem(decision, status, sentence)
    front, _, back = json.dumps(document, separators=(",", ":")).partition("%d")
    return front.encode(), back[:-1].encode() + b',"retry_after_s":'


def _legacy(decision: Decision) -> list[Field]:
    remaining = decision.remaining if decision.allowed else 0
    seconds = decision.reset_after_s if decision.allowed else decision.retry_after_s
    return [
        (b"x-ratelimit-limit", b"%d" % decision.limit),
        (b"x-ratelimit-remaining", b"%d" % remaining),
        (b"x-ratelimit-reset", b"%d" % (ceil(seconds) if isfinite(seconds) else 0)),
    ]
