"""Target, header fields and sending options, shared by ``load`` and ``replay``."""

from __future__ import annotations

import argparse
import ipaddress
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from autoglm_throttle.cli.lab.faults import Faults
from autoglm_throttle.cli.lab.option import Option, hidden_value
from autoglm_throttle.traffic.arrivals import duration, number
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import Options, Target

FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect"})
"""Header fields that the generator sets itself."""

MOST_PROCESSES: Final = 64
"""Upper bound against typing errors: one process sends more than ten thousand requests a second."""

_USUAL: Final = Options()

FIELDS: Final = (
    Option("--header", "'NAME: VALUE'", "a header field of every request", many=True, shown=hidden_value),
    Option("--priority-header", "NAME", "carries the priority (default: x-priority)"),
    Option("--identity-header", "NAME", "carries who asks, so that limits of users act (default: none)"),
    Option("--cost-header", "NAME", "carries the cost of the request (default: none)"),
    Option("--ca-file", "FILE", "PEM of the authorities to trust with https, instead of the system's"),
    Option("--server-name", "NAME", "what the certificate must be made out to (default: the host of URL)"),
    Option("--insecure", None, "take any certificate"),
    Option("--yes", None, "URL is not this machine, and I may load it"),
)

EFFORT: Final = (
    Option("--connections", "N", f"opened before the start (default: {_USUAL.connections})"),
    Option(
        "--max-inflight",
        "N",
        f"with more requests on the way the next is dropped and counted (default: {_USUAL.max_inflight})",
    ),
    Option(
        "--timeout", "TIME", f"from a request's intended start to its end (default: {_USUAL.timeout_s:g}s)"
    ),
    Option("--drain", "TIME", f"to wait for answers after the last request (default: {_USUAL.drain_s:g}s)"),
    Option("--processes", "N", "that send, one core each (default: 1)"),
    Option("--spin", None, "start requests exact to 10 us instead of 1 ms, which takes a whole core"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Target and options of sending."""

    target: Target
    options: Options
    processes: int


def read(args: argparse.Namespace, typed: str, url: str, faults: Faults) -> Sending:
    """Read these options.

    Args:
        args: the parsed arguments.
        typed: the URL as it was typed.
        url: with the path that all requests share, or without one.
        faults: collects problems.
    """
    found = [faults.read("--header", _header, text, None) for text in args.header]
    stated = {
        "headers": tuple(field for field in found if field is not None),
        "priority_header": args.priority_header,
        "identity_header": args.identity_header,
        "cost_header": args.cost_header,
        "ca_file": args.ca_file,
        "server_name": args.server_name,
        "verify": not args.insecure,
    }
    given = {name: value for name, value in stated.items() if value is not None}
    target = faults.make("URL", lambda: _target(typed, url, given), Target(port=80))
    if args.ca_file is not None:
        faults.make("--ca-file", target.tls, None)
    if not (args.yes or is_loopback(target.host)):
        faults.note("URL", f"{target.host} is not this machine: add --yes if you may load it")
    return Sending(
        target=target,
        options=_options(args, faults),
        processes=faults.read("--processes", whole(1, MOST_PROCESSES), args.processes, 1),
    )


def _target(typed: str, url: str, given: dict[str, Any]) -> Target:
    if "://" not in typed and not typed.startswith("/"):
        raise TrafficError(f"{typed!r} must begin with http:// or https://: did you mean http://{typed}?")
    return Target.parse(url, **given)


def _options(args: argparse.Namespace, faults: Faults) -> Options:
    return Options(
        connections=faults.read("--connections", whole(1), args.connections, _USUAL.connections),
        max_inflight=faults.read("--max-inflight", whole(1), args.max_inflight, _USUAL.max_inflight),
        timeout_s=faults.read("--timeout", time_s, args.timeout, _USUAL.timeout_s),
        drain_s=faults.read("--drain", time_s, args.drain, _USUAL.drain_s),
        spin=args.spin,
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name = name.strip().lower()
    if not colon or not name:
        raise TrafficError("a header field is written 'NAME: VALUE'")
    if name in FRAMING:
        raise TrafficError(f"{name} is stated by the generator itself")
    return name, value.strip()


def is_loopback(host: str) -> bool:
    """Whether a host is certainly this machine; names are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def cut_url(url: str) -> tuple[str, str]:
    """Split a URL into its origin, and path with query; ``/`` if it has no path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, "/"
    place = parts.path or "/"
    bare = parts._replace(path="", query="", fragment=parts.fragment)
    return bare.geturl(), f"{place}?{parts.query}" if parts.query else place


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return a parser of whole numbers within bounds."""

    def read_whole(word: str) -> int:
        value = number(word)
        if not least <= value <= most or value != math.floor(value) or math.isinf(value):
            bounds = f"from {least} to {most}" if math.isfinite(most) else f"of at least {least}"
            raise TrafficError(f"{word!r} must be a whole number {bounds}")
        return int(value)

    return read_whole


def time_s(word: str) -> float:
    """Parse a duration above 0; return seconds.

    Raises:
        TrafficError: no duration, or none above 0.
    """
    seconds = duration(word)
    if not 0.0 < seconds < math.inf:
        raise TrafficError(f"{word!r} must be a finite duration above 0")
    return seconds
