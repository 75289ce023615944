"""Which requests may be one user's own: those with any field that is not known to be harmless.

Who asks can stand in a field of any name: ``Authorization``, ``Cookie``, ``X-Api-Key``, whatever the next
service has thought of. So the list here is of the fields that cannot tell whose answer it is, and every other
field makes a request personal. A field is on it when it speaks of

- how the answer is to be packed or worded (``Accept-*``; answers that differ say so with ``Vary``), or which
  part of it is wanted, or whether (``Range``, ``If-*``: only whole answers of 200 are kept, and those are
  right for all of these);
- the message and the connection, hop by hop;
- the program that asks and the page it asks from (``User-Agent``, ``Sec-Fetch-*``, ``Referer``, ``Origin``);
- the path of the request through proxies and traces. The address of the client is among that: a dependency
  whose answers depend on the address needs a key, as does one that goes by ``Referer`` or ``Origin``.

Not on it, though they look alike: ``Forwarded`` and ``X-Forwarded-*`` in general, of which some name a user
(``X-Forwarded-User``) or a certificate (``X-Forwarded-Client-Cert``), and ``baggage``, which may carry
anything.
"""

from __future__ import annotations

from typing import Final

from autoglm_throttle.resilience.http.answer import Pairs

_ANSWER: Final = frozenset(
    {
        "accept",
        "accept-charset",
        "accept-datetime",
        "accept-encoding",
        "accept-language",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "range",
    }
)

_MESSAGE: Final = frozenset(
    {
        "cache-control",
        "cdn-loop",
        "connection",
        "content-encoding",
        "content-language",
        "content-length",
        "content-type",
        "date",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "max-forwards",
        "pragma",
        "priority",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
    }
)

_PROGRAM: Final = frozenset(
    {
        "device-memory",
        "dnt",
        "downlink",
        "dpr",
        "ect",
        "origin",
        "purpose",
        "referer",
        "rtt",
        "save-data",
        "sec-gpc",
        "sec-purpose",
        "upgrade-insecure-requests",
        "user-agent",
        "viewport-width",
        "width",
    }
)

_ADDRESS: Final = frozenset(
    {
        "cf-connecting-ip",
        "cf-ipcountry",
        "cf-visitor",
        "true-client-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-envoy-external-address",
        "x-envoy-internal",
        "x-forwarded-for",
        "x-original-forwarded-for",
        "x-real-ip",
    }
)

_TRACE: Final = frozenset(
    {
        "b3",
        "cf-ray",
        "request-id",
        "sentry-trace",
        "traceparent",
        "tracestate",
        "uber-trace-id",
        "x-amzn-trace-id",
        "x-b3-flags",
        "x-b3-parentspanid",
        "x-b3-sampled",
        "x-b3-spanid",
        "x-b3-traceid",
        "x-cloud-trace-context",
        "x-correlation-id",
        "x-envoy-attempt-count",
        "x-envoy-expected-rq-timeout-ms",
        "x-forwarded-server",
        "x-request-id",
        "x-request-start",
        "x-trace-id",
    }
)

HARMLESS: Final = _ANSWER | _MESSAGE | _PROGRAM | _ADDRESS | _TRACE
"""Names in lower case."""

HARMLESS_BEGINNINGS: Final = ("sec-ch-", "sec-fetch-")
"""What a browser says of itself and of the page; scripts cannot set fields that begin with ``sec-``."""

ADDRESSING: Final = frozenset(
    {
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-scheme",
        "x-forwarded-ssl",
        "x-scheme",
    }
)
"""A part of what is asked for, like the URL, as apps make links of them.

Were they left out, whoever sends a false host once would have his links given to others.
"""


def personal(headers: Pairs) -> bool:
    """Whether the fields of a request could tell who asks.

    Args:
        headers: of the request; names in any case.
    """
    return not all(_harmless(name.lower()) for name, _ in headers)


def addressing(headers: Pairs) -> Pairs:
    """The fields that say what is asked for beside the URL, in one order.

    Args:
        headers: of the request; names in any case.
    """
    return tuple(sorted((name.lower(), value) for name, value in headers if name.lower() in ADDRESSING))


def _harmless(name: str) -> bool:
    return name in HARMLESS or name in ADDRESSING or name.startswith(HARMLESS_BEGINNINGS)
