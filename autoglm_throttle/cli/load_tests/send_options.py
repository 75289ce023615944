"""Target, header fields and sending options, shared by ``load`` and ``replay``."""

from __future__ import annotations

import argparse
import ipaddress
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from autoglm_throttle.cli.load_tests.option import Option, hidden_value
from autoglm_throttle.cli.load_tests.problems import ProblemList
from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, TargetUrl, TlsOptions
from autoglm_throttle.traffic.plan import parse_duration, parse_number

FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect"})
"""Header fields that the generator sets itself."""

_DEFAULTS: Final = ClientOptions()

FIELD_OPTIONS: Final = (
    Option("--header", "'NAME: VALUE'", "a header field of every request", many=True, shown=hidden_value),
    Option("--priority-header", "NAME", f"header field for the priority (default: {PRIORITY_HEADER})"),
    Option(
        "--identity-header", "NAME", "header field for the caller, so that user limits apply (default: none)"
    ),
    Option("--cost-header", "NAME", "header field for the cost of the request (default: none)"),
    Option("--ca-file", "FILE", "PEM of the authorities to trust with https, instead of the system's"),
    Option("--server-name", "NAME", "expected name in the certificate (default: the host of URL)"),
    Option("--insecure", None, "accept any certificate"),
    Option("--yes", None, "confirm that URL is another machine that you may load"),
)

EFFORT_OPTIONS: Final = (
    Option("--connections", "N", f"connections opened before the start (default: {_DEFAULTS.connections})"),
    Option(
        "--max-inflight",
        "N",
        "with more requests in flight the next one is dropped and counted "
        f"(default: {_DEFAULTS.max_inflight})",
    ),
    Option(
        "--timeout", "TIME", f"from a request's intended start to its end (default: {_DEFAULTS.timeout_s:g}s)"
    ),
    Option(
        "--drain",
        "TIME",
        f"time to wait for responses after the last request (default: {_DEFAULTS.drain_s:g}s)",
    ),
    Option("--spin", None, "start requests with 10 us precision instead of 1 ms, using a whole core"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """Target and options of sending."""

    target: TargetUrl
    options: ClientOptions


def read(args: argparse.Namespace, typed: str, url: str, problems: ProblemList) -> SendOptions:
    """Read these options.

    Args:
        args: the parsed arguments.
        typed: the URL as it was typed.
        url: with the path that all requests share, or without one.
        problems: collects problems.
    """
    parsed = [problems.read("--header", _header, text, None) for text in args.header]
    stated = {
        "headers": tuple(field for field in parsed if field is not None),
        "priority_header": args.priority_header,
        "identity_header": args.identity_header,
        "cost_header": args.cost_header,
        "tls": TlsOptions(verify=not args.insecure, ca_file=args.ca_file, server_name=args.server_name),
    }
    given = {name: value for name, value in stated.items() if value is not None}
    target = problems.make("URL", lambda: _target(typed, url, given), TargetUrl(port=80))
    if args.ca_file is not None:
        problems.make("--ca-file", target.tls_context, None)
    if not (args.yes or is_loopback(target.host)):
        problems.add("URL", f"{target.host} is not this machine: add --yes if you may load it")
    return SendOptions(
        target=target,
        options=_options(args, problems),
    )


def _target(typed: str, url: str, given: dict[str, Any]) -> TargetUrl:
    if "://" not in typed and not typed.startswith("/"):
        raise TrafficError(f"{typed!r} must begin with http:// or https://: did you mean http://{typed}?")
    return TargetUrl.parse(url, **given)


def _options(args: argparse.Namespace, problems: ProblemList) -> ClientOptions:
    return ClientOptions(
        connections=problems.read("--connections", whole_number(1), args.connections, _DEFAULTS.connections),
        max_inflight=problems.read(
            "--max-inflight", whole_number(1), args.max_inflight, _DEFAULTS.max_inflight
        ),
        timeout_s=problems.read("--timeout", time_s, args.timeout, _DEFAULTS.timeout_s),
        drain_s=problems.read("--drain", time_s, args.drain, _DEFAULTS.drain_s),
        spin=args.spin,
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name = name.strip().lower()
    if not colon or not name:
        raise TrafficError("a header field is written 'NAME: VALUE'")
    if name in FRAMING:
        raise TrafficError(f"{name} is set by the generator itself")
    return name, value.strip()


def is_loopback(host: str) -> bool:
    """Whether a host is certainly this machine; names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into its origin, and path with query; ``/`` if it has no path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, "/"
    place = parts.path or "/"
    bare = parts._replace(path="", query="", fragment=parts.fragment)
    return bare.geturl(), f"{place}?{parts.query}" if parts.query else place


def whole_number(minimum: int, maximum: float = math.inf) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds."""

    def read_whole(word: str) -> int:
        value = parse_number(word)
        if not minimum <= value <= maximum or value != math.floor(value) or math.isinf(value):
            bounds = f"from {minimum} to {maximum}" if math.isfinite(maximum) else f"of at least {minimum}"
            raise TrafficError(f"{word!r} must be a whole number {bounds}")
        return int(value)

    return read_whole


def time_s(text: str) -> float:
    """Parse a duration above 0; return seconds.

    Raises:
        TrafficError: no duration, or none above 0.
    """
    seconds = parse_duration(text)
    if not 0.0 < seconds < math.inf:
        raise TrafficError(f"{text!r} must be a finite duration above 0")
    return seconds
