"""``nginx``: prints the configuration of nginx as a second tier, with the rates of ``tiers``."""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from autoglm_throttle.admission.nginx_flags import tier_factors, tier_name
from autoglm_throttle.cli.output import EXIT_OK, PROBLEM_FOUND, add_sources, colored, load, write, write_json
from autoglm_throttle.settings import PREFIX, ConfigError, Problem, Settings
from autoglm_throttle.settings.field_types import FieldTypeError, plain
from autoglm_throttle.settings.groups.control import FLAGS_DIR
from autoglm_throttle.settings.route_policy import REST
from autoglm_throttle.types import Priority

BURST: Final = 0.1  # of a second's requests: a client that sends evenly has a jitter below that
CLOSED_RETRY_S: Final = 2  # two samples: sooner the tier cannot have changed
CHECK_TIMEOUT_S: Final = 60.0
METRICS: Final = "/metrics"
PARTS: Final = ("all", "http", "server")

_HOST: Final = r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
_UPSTREAM: Final = rf"{_HOST}:[0-9]{{1,5}}|unix:/[A-Za-z0-9._/-]{{1,100}}"
_NAME: Final = r"[a-z][a-z0-9_]{0,31}"
_LISTEN: Final = rf"(?:(?:{_HOST}|\*):)?[0-9]{{1,5}}"


@dataclass(frozen=True, slots=True)
class EdgeTier:
    """One tier of nginx: the requests/s of one address while it is in force."""

    name: str  # of its flag, its zone and its key; the highest one has no flag
    factor: float
    rate_rps: float

    @property
    def per_minute(self) -> int:
        """Requests per minute; nginx knows whole numbers, so it is at most one more than the rate says."""
        return max(1, math.ceil(round(60.0 * self.rate_rps, 6)))

    @property
    def rate(self) -> str:
        """The rate in the notation of nginx."""
        return f"{self.per_minute}r/m" if self.per_minute % 60 else f"{self.per_minute // 60}r/s"

    @property
    def burst(self) -> int:
        """Requests that may come at once."""
        return max(1, round(BURST * self.rate_rps))


def edge_tiers(settings: Settings, priority: Priority) -> list[EdgeTier]:
    """Return the tiers of the table in force, with the rates of a priority, from the highest down."""
    rate_rps = settings.rates.rates_rps[priority]
    return [
        EdgeTier(tier_name(factor), factor, round(rate_rps * factor, 9)) for factor in tier_factors(settings)
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--flags-dir",
        metavar="DIR",
        type=_flags_dir,
        help="the folder of the flags that the service writes (default: NGINX_FLAGS_DIR)",
    )
    parser.add_argument(
        "--upstream",
        metavar="ADDRESS",
        action="append",
        type=_matching(_UPSTREAM, "HOST:PORT or unix:PATH"),
        help="a server of the service; may be given several times (default: 127.0.0.1:8000)",
    )
    parser.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        default="80",
        type=_matching(_LISTEN, "PORT or HOST:PORT"),
        help="address of the server of nginx (default: 80)",
    )
    parser.add_argument(
        "--priority",
        choices=[each.label for each in Priority],
        default="high",
        help="class whose rate one address may send (default: high)",
    )
    parser.add_argument(
        "--name",
        default="throttle",
        type=_matching(_NAME, "a letter, then up to 31 of a-z, 0-9 and _"),
        help="beginning of all names in it, one for each service of this nginx (default: throttle)",
    )
    parser.add_argument(
        "--part",
        choices=PARTS,
        default="all",
        help="print the whole file, or the part for http {} or server {} of your own (default: all)",
    )
    parser.add_argument(
        "--check", action="store_true", help="print no configuration; check it with nginx -t instead"
    )
    add_sources(parser)


def run(args: argparse.Namespace) -> int:
    """Print the configuration, or check it."""
    settings = load(args)
    tiers = edge_tiers(settings, Priority.parse(args.priority))
    folder = args.flags_dir or settings.control.nginx_flags_dir
    if folder is None and len(tiers) > 1:
        hint = "the folder in which the service writes its flags, for example /run/autoglm-throttle"
        raise ConfigError([Problem(f"{PREFIX}NGINX_FLAGS_DIR", "is not set, nor is --flags-dir", hint)])
    edge = EdgeConfiguration(settings, tiers, folder or "", args.upstream or ["127.0.0.1:8000"], args.name)
    if args.check:
        return _check(edge)
    text = edge.text(args.part, args.listen)
    if args.format == "json":
        rows = [{**asdict(tier), "rate": tier.rate, "burst": tier.burst} for tier in tiers]
        write_json({"flags_dir": folder, "tiers": rows, "configuration": text})
    else:
        write(text)
    return EXIT_OK


class EdgeConfiguration:
    """The configuration of nginx for the tiers of a service; ``folder`` is that of the flags."""

    def __init__(
        self, settings: Settings, tiers: list[EdgeTier], folder: str, upstreams: list[str], name: str
    ) -> None:
        self._name = name  # names of zones, variables and upstreams are of the whole nginx
        self._settings = settings
        self._folder = folder
        self._upstreams = upstreams
        self._highest = tiers[0]
        self._lower = tiers[1:]
        self._open = [tier for tier in tiers if tier.factor > 0.0]

    def text(self, part: str, listen: str) -> str:
        """Return a part of the configuration: ``http``, ``server``, or ``all``."""
        rates = ", ".join(f"{plain(round(tier.rate_rps, 3))} at tier {tier.name}" for tier in self._open)
        lines = ["# Made by `autoglm-throttle nginx`.", f"# Requests/s of one address: {rates}."]
        if part in {"all", "http"}:
            lines += self._http_lines()
        if part == "all":
            lines += ["", "server {", f"    listen {listen};", *_indented(self._server_lines()), "}"]
        elif part == "server":
            lines += self._server_lines()
        return "\n".join(lines)

    def _http_lines(self) -> Iterator[str]:
        name, address = self._name, f"${self._name}_address"
        octets = -(-self._settings.callers.ipv6_prefix // 8)
        yield f"map $binary_remote_addr {address} {{"
        yield "    default $binary_remote_addr;"
        # An IPv4 address inside IPv6, on a socket for both: without it all of them would be one network.
        yield rf'    "~(?s)^\x00{{10}}\xff\xff(?<{name}_ipv4>.{{4}})$" ${name}_ipv4;'
        yield f'    "~(?s)^(?<{name}_ipv6>.{{{octets}}}).{{{16 - octets}}}$" ${name}_ipv6;'
        yield "}"
        for tier in self._open:
            key = f"${name}_key_{tier.name}"
            # An empty key is not counted: one zone applies.
            yield f'map ${name}_tier {key} {{ default ""; "{tier.name}" {address}; }}'
            yield f"limit_req_zone {key} zone={name}_{tier.name}:10m rate={tier.rate};"
        yield f'map $http_upgrade ${name}_connection {{ default upgrade; "" ""; }}'
        yield f"upstream {name}_service {{"
        yield from (f"    server {address};" for address in self._upstreams)
        yield "    keepalive 64;"
        # Below the 5 s of uvicorn: a request on a connection that the server is closing would fail.
        yield "    keepalive_timeout 4s;"
        yield "}"

    def _server_lines(self) -> Iterator[str]:
        name, passes = self._name, f"proxy_pass http://{self._name}_service"
        yield f"set ${name}_tier {self._highest.name};"
        for tier in self._lower:  # of two flags the lower tier counts
            yield f"if (-f {self._folder}/tier{tier.name}) {{ set ${name}_tier {tier.name}; }}"
        yield "limit_req_status 429;"
        yield "limit_req_log_level info;"
        if self._settings.control.dry_run:
            yield "limit_req_dry_run on;"
        yield "proxy_http_version 1.1;"
        yield "proxy_buffering off;"  # streams
        yield "proxy_read_timeout 600s;"  # of a response that is not streamed
        yield "proxy_next_upstream error;"  # a slow request is not sent again, as by default
        for field, value in _FORWARDED.items():
            yield f"proxy_set_header {field} {value};"
        yield f"proxy_set_header Connection ${name}_connection;"
        yield from self._exempt_lines(passes)
        yield "location / {"
        if len(self._open) == len(self._lower):  # the lowest tier is 0
            yield f"    if (${name}_tier = 0) {{ return 418; }}"
        for tier in self._open:
            yield f"    limit_req zone={name}_{tier.name} burst={tier.burst} nodelay;"
        yield f"    error_page 418 = @{name}_closed;"
        yield f"    error_page 429 = @{name}_limited;"
        yield f"    {passes};"
        yield "}"
        yield from _answer(f"{name}_closed", 503, "Service Unavailable", "gpu:overload", CLOSED_RETRY_S)
        wait_s = math.ceil(60 / self._open[-1].per_minute)
        yield from _answer(f"{name}_limited", 429, "Too Many Requests", "rate:address", wait_s)

    def _exempt_lines(self, passes: str) -> Iterator[str]:
        """Return the locations of exempt paths and routes; marks of endpoints are not known here."""
        for path in self._settings.callers.exempt_paths:
            # Metrics are for Prometheus, which reads them from the service itself.
            action = "deny all" if path == METRICS else passes
            yield f"location = {_quoted(path)} {{ {action}; }}"
        yield f"location ^~ {METRICS}/ {{ deny all; }}"
        for route in self._settings.routes:
            if route.exempt and route.methods is None:
                yield f"location ~ {_quoted(_pattern(route.segments))} {{ {passes}; }}"


_FORWARDED: Final = {
    "Host": "$host",
    # Not appended: what the client has sent in this field must not count.
    "X-Forwarded-For": "$remote_addr",
    "X-Forwarded-Proto": "$scheme",
    "Upgrade": "$http_upgrade",
}


def _pattern(segments: Sequence[str]) -> str:
    """Return the regular expression of a route's pattern; a slash at the end is allowed, as in a route."""
    parts = ("/[^/]+" if each.startswith("{") else f"/{re.escape(each)}" for each in segments if each != REST)
    return f"^{''.join(parts)}{'(?:/.*)?' if REST in segments else '/?'}$"


def _answer(name: str, status: int, title: str, reason: str, wait_s: int) -> Iterator[str]:
    body = f'{{"type":"about:blank","title":"{title}","status":{status},"reason":"{reason}"}}'
    yield f"location @{name} {{"
    yield "    default_type application/problem+json;"
    yield f"    add_header Retry-After {wait_s} always;"
    yield f"    return {status} '{body}';"
    yield "}"


def find_nginx() -> str | None:
    """Return the path of nginx, also where only the PATH of root holds it; None: it is not installed."""
    folders = (os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin")
    return shutil.which("nginx", path=os.pathsep.join(folders))


def _check(edge: EdgeConfiguration) -> int:
    """Check the configuration with ``nginx -t``; it neither listens on the port nor uses files of nginx."""
    program = find_nginx()
    if program is None:
        write(f"{colored('fail')}: nginx is not installed here: the configuration was not checked")
        return PROBLEM_FOUND
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nginx.conf"
        file.write_text(_MAIN.format(text=edge.text("all", f"unix:{folder}/socket")), "utf-8")
        command = [program, "-t", "-p", f"{folder}/", "-c", str(file)]
        try:
            done = subprocess.run(  # noqa: S603 - the program is nginx, and no argument is from outside
                command, capture_output=True, text=True, check=False, timeout=CHECK_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            write(f"{colored('fail')}: {program}: {error}")
            return PROBLEM_FOUND
    if done.returncode:
        write(f"{colored('fail')}: {program} -t: {done.stderr.strip()}")
        return PROBLEM_FOUND
    write(f"{colored('ok')}: {program} accepts the configuration")
    return EXIT_OK


_MAIN: Final = """\
pid pid;
error_log stderr;
events {{ }}
http {{
access_log off;
client_body_temp_path body;
proxy_temp_path proxy;
fastcgi_temp_path fastcgi;
uwsgi_temp_path uwsgi;
scgi_temp_path scgi;
{text}
}}
"""


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _flags_dir(text: str) -> str:
    try:
        return str(FLAGS_DIR.checked(text))
    except FieldTypeError:
        raise argparse.ArgumentTypeError(f"must be {FLAGS_DIR.allowed}, not {text!r}") from None


def _matching(pattern: str, allowed: str) -> Callable[[str], str]:
    def address(text: str) -> str:
        port = text.rpartition(":")[2]
        if not re.fullmatch(pattern, text) or (port.isdigit() and not 1 <= int(port) <= 65_535):
            raise argparse.ArgumentTypeError(f"must be {allowed}, a port from 1 to 65535, not {text!r}")
        return text

    return address
