"""Classification of requests as private: any request with a field that may identify the user.

A user can be identified by a field of any name: ``Authorization``, ``Cookie``, ``X-Api-Key`` or a custom one.
So the list here names the fields that do not identify a user, and every other field makes a request private.
The listed fields describe

- encoding and form of the response (``Accept-*``; responses that differ declare it with ``Vary``), or the
  wanted part of it, or a condition (``Range``, ``If-*``: only complete responses with status 200 are stored,
  and they satisfy all of these);
- the message and the connection, hop by hop;
- the client program and the calling page (``User-Agent``, ``Sec-Fetch-*``, ``Referer``, ``Origin``);
- the path of the request through proxies and traces. This includes the address of the client: a dependency
  with responses per address needs a key, as does one that uses ``Referer`` or ``Origin``.

Not listed, though similar: ``Forwarded`` and ``X-Forwarded-*`` in general, since some name a user
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

NON_IDENTIFYING: Final = _ANSWER | _MESSAGE | _PROGRAM | _ADDRESS | _TRACE
"""Names in lower case."""

NON_IDENTIFYING_PREFIXES: Final = ("sec-ch-", "sec-fetch-")
"""Fields that describe the browser and the page; scripts cannot set fields that begin with ``sec-``."""

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
"""Fields that are a part of the address, like the URL, since apps build links from them.

Without them in the key, one request with a forged host could poison the links of all others.
"""


def is_private(headers: Pairs) -> bool:
    """Whether a field of the request may identify the user.

    Args:
        headers: of the request; names in any case.
    """
    return not all(_is_non_identifying(name.lower()) for name, _ in headers)


def addressing_fields(headers: Pairs) -> Pairs:
    """Return the addressing fields of a request, sorted.

    Args:
        headers: of the request; names in any case.
    """
    return tuple(sorted((name.lower(), value) for name, value in headers if name.lower() in ADDRESSING))


def _is_non_identifying(name: str) -> bool:
    return name in NON_IDENTIFYING or name in ADDRESSING or name.startswith(NON_IDENTIFYING_PREFIXES)
