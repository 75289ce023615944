"""Options of the load tests, parsed so that all problems are reported together; those that commands share."""

from __future__ import annotations

import argparse
import ipaddress
import math
import os
import shlex
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from autoglm_throttle.cli.output import WRONG_USAGE, to_stderr
from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.settings.problems import masked_url
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, TargetUrl, TlsOptions
from autoglm_throttle.traffic.generator.target import FRAMING
from autoglm_throttle.traffic.plan import parse_duration, parse_number
from autoglm_throttle.traffic.probes import MetricsProbe, ProcessProbe
from autoglm_throttle.traffic.report import LIMITS_S, Objectives
from autoglm_throttle.types import Priority, ThrottleError

INTERRUPTED: Final = 130  # The exit status after Ctrl-C, as shells define it

HIDDEN: Final = "***"

T = TypeVar("T")


class ProblemList:
    """List of problems, filled while options are read."""

    def __init__(self) -> None:
        self._problems: list[str] = []

    def add(self, option: str, problem: object) -> None:
        """Add a problem."""
        self._problems.append(f"{option}: {problem}")

    def make(self, option: str, make: Callable[[], T], other: T) -> T:
        """Build a value; if that raises, add the problem of this option and return ``other``."""
        try:
            return make()
        except OSError as error:
            self.add(option, f"{error.filename}: {error.strerror}" if error.filename else error)
        except (TrafficError, ValueError) as error:
            self.add(option, error)
        return other

    def raise_if_any(self) -> None:
        """Raise one error with all problems, each on a line, if there are any."""
        if self._problems:
            raise TrafficError("\n".join(self._problems))


class Option(NamedTuple):
    """A row of a table of options."""

    name: str  # With its dashes
    metavar: str | None  # Name of its value; None: it is a switch
    help: str
    # Parses its text; may raise ``TrafficError``, ``ValueError`` or ``OSError``.
    parse: Callable[[str], Any] = str
    default: str | None = None  # Text of its default, which the help shows; None: there is no value
    many: bool = False  # Whether it may be given several times; its value is a list then
    shown: Callable[[str], str] = str  # Form of its text in reports; some texts may hold a secret


OptionGroups = Mapping[str, Sequence[Option]]  # Title of a group -> its options


class _OptionAction(argparse.Action):
    """Stores a parsed value or its problem, and its words; ``const`` holds its group's title, and its row."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, *_: object
    ) -> None:
        (title, option), text = self.const, str(values)
        words = namespace.given.setdefault((title, option.name), [])
        if option.metavar is None:
            words[:] = [option.name]
            setattr(namespace, self.dest, True)
            return
        shown = [option.name, option.shown(text)]
        other = None if option.many else self.default
        value = namespace.problems.make(option.name, lambda: option.parse(text), other)
        if option.many:
            words += shown
            value = [*getattr(namespace, self.dest), *([] if value is None else [value])]
        else:
            words[:] = shown
        setattr(namespace, self.dest, value)


def add_options(parser: argparse.ArgumentParser, groups: OptionGroups) -> None:
    """Add groups of options; ``given`` holds the words of each given one. A wrong one has its default."""
    for title, options in groups.items():
        group = parser.add_argument_group(title)
        for option in options:
            default: Any = [] if option.many else None
            if option.metavar is None:
                default = False
            elif option.default is not None:
                default = option.parse(option.default)
            group.add_argument(
                option.name,
                action=_OptionAction,
                const=(title, option),
                metavar=option.metavar,
                nargs=0 if option.metavar is None else None,
                default=default,
                help=option.help + (f" (default: {option.default})" if option.default else ""),
            )
    parser.set_defaults(problems=ProblemList(), given={})


def given_words(args: argparse.Namespace, *names: str) -> list[str]:
    """Return given options as words of a command line, without secrets: of groups, of options, or all."""
    return [
        word
        for (title, name), words in args.given.items()
        if not names or title in names or name in names
        for word in words
    ]


def is_given(args: argparse.Namespace, name: str) -> bool:
    """Whether an option was given, rightly or wrongly."""
    return bool(given_words(args, name))


def hidden_query(text: str) -> str:
    """Return a URL or path without the values of its query; a part without a name is a value."""
    place, mark, query = text.partition("?")
    if not query:
        return text
    parts = (part.partition("=") for part in query.split("&"))
    return f"{place}{mark}{'&'.join(f'{name}={HIDDEN}' if equals else HIDDEN for name, equals, _ in parts)}"


def above_zero(text: str) -> float:
    """Parse a finite number above 0."""
    value = parse_number(text)
    if not 0.0 < value < math.inf:
        raise TrafficError(f"{text!r} must be a finite number above 0")
    return value


def whole_number(text: str) -> int:
    """Parse a whole number of at least 1."""
    value = parse_number(text)
    if not 1.0 <= value < math.inf or value != math.floor(value):
        raise TrafficError(f"{text!r} must be a whole number of at least 1")
    return int(value)


def time_s(text: str) -> float:
    """Parse a duration above 0; return seconds."""
    seconds = parse_duration(text)
    if not 0.0 < seconds < math.inf:
        raise TrafficError(f"{text!r} must be a finite duration above 0")
    return seconds


def is_json(text: str) -> bool:
    """Whether the output format is JSON."""
    if text not in ("text", "json"):
        raise TrafficError(f"{text!r} is neither text nor json")
    return text == "json"


def run_command(name: str, work: Callable[[], int]) -> int:
    """Run a command. Errors, also unexpected ones, end with 2: 1 would mean that an objective failed."""
    try:
        return work()
    except ThrottleError as error:
        text = "".join(f"autoglm-throttle {name}: {problem}\n" for problem in str(error).split("\n"))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # an OSError, but no failure: main() treats it as success
        raise
    except (OSError, MemoryError) as error:
        text = f"autoglm-throttle {name}: {str(error) or 'out of memory'}\n"
    except Exception:  # noqa: BLE001 - printed in full
        bug = "this is a bug in autoglm-throttle; please report it"
        text = f"{traceback.format_exc()}autoglm-throttle {name}: {bug}\n"
    to_stderr(text)
    return WRONG_USAGE


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


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name = name.strip().lower()
    if not colon or not name:
        raise TrafficError("a header field is written 'NAME: VALUE'")
    if name in FRAMING:
        raise TrafficError(f"{name} is set by the generator itself")
    return name, value.strip()


def _objectives(text: str) -> Objectives:
    if not text.strip():
        raise TrafficError(
            "contains no objective; is a variable not set? omit the option if no objective is intended"
        )
    return Objectives.parse(text)


def _limits(text: str) -> Mapping[Priority, float]:
    """Read ``high=200ms,low=5s``, or one limit for all. Omitted priorities keep their default."""
    if "=" not in text:
        return dict.fromkeys(Priority, time_s(text))
    limits = dict(LIMITS_S)
    for item in text.split(","):
        name, _, limit = item.partition("=")
        try:
            limits[Priority[name.strip().upper()]] = time_s(limit.strip())
        except KeyError:
            raise TrafficError(f"unknown priority {name.strip()!r}: high, mid or low") from None
    return limits


def _writable(text: str) -> Path:
    """Check a path before the run, which writes to it only at its end."""
    path = Path(text)
    if path.is_dir():
        raise TrafficError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise TrafficError(f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise TrafficError(f"{path} cannot be written")
    return path


def _name_only(text: str) -> str:
    return f"{text.partition(':')[0]}: {HIDDEN}"


def _process(text: str) -> ProcessProbe:
    return ProcessProbe(whole_number(text))


_CLIENT: Final = ClientOptions()
_TIMEOUT, _DRAIN = f"{_CLIENT.timeout_s:g}s", f"{_CLIENT.drain_s:g}s"
_LIMITS: Final = ",".join(f"{priority.label}={limit_s:g}s" for priority, limit_s in LIMITS_S.items())
_IN_FLIGHT: Final = "with more requests in flight the next one is dropped and counted"
_SLO: Final = "objectives, such as 'p99<500ms,error<0.5%%,goodput.high>0.99,rps>=100/s'"
_METRICS: Final = "metrics of a service with this library: its factor, requests in flight and queued, GPUs"

_TARGET: Final = (
    Option("--header", "'NAME: VALUE'", "a field of every request", _header, many=True, shown=_name_only),
    Option("--priority-header", "NAME", "header field for the priority", default=PRIORITY_HEADER),
    Option("--identity-header", "NAME", "field for the caller, so that user limits apply (default: none)"),
    Option("--cost-header", "NAME", "header field for the cost of the request (default: none)"),
    Option("--ca-file", "FILE", "PEM of the authorities to trust with https, instead of the system's"),
    Option("--server-name", "NAME", "expected name in the certificate (default: the host of URL)"),
    Option("--insecure", None, "accept any certificate"),
    Option("--yes", None, "confirm that URL is another machine that you may load"),
)
_SENDING: Final = (
    Option("--connections", "N", "opened before the start", whole_number, str(_CLIENT.connections)),
    Option("--max-inflight", "N", _IN_FLIGHT, whole_number, str(_CLIENT.max_inflight)),
    Option("--timeout", "TIME", "from a request's intended start to its end", time_s, _TIMEOUT),
    Option("--drain", "TIME", "time to wait for responses after the last request", time_s, _DRAIN),
)
_REPORT: Final = (
    Option("--slo", "TERMS", _SLO, _objectives),
    Option("--within", "LIMITS", "a response later than this is not goodput", _limits, _LIMITS),
    Option("--title", "TEXT", "title of the report (default: host and shape)"),
    Option("--json", "FILE", "write the report as JSON", _writable),
    Option("--html", "FILE", "write the report as one HTML page with plots", _writable),
    Option("--format", "text|json", "output format", is_json, "text"),
    Option("--quiet", None, "show no progress"),
    Option("--dry-run", None, "print the plan, and send nothing"),
)
_MONITORING: Final = (
    Option("--watch", "PID", "CPU and memory of this process and its children", _process),
    Option("--metrics", "URL", _METRICS, MetricsProbe, shown=masked_url),
)
RUN_GROUPS: Final[OptionGroups] = {  # The options that ``load`` and ``replay`` share
    "target and header fields": _TARGET,
    "sending": _SENDING,
    "objectives and report": _REPORT,
    "monitoring during the run, once a second": _MONITORING,
}

RUN_STATUSES: Final = """\
exit status:
  0    all objectives hold; without objectives, a request succeeded
  1    an objective (or --check) failed; without one, no request succeeded or the service went down;
       over 95 % were not served, most of them rejected, and no objective is on limited, shed or goodput
  2    the run could not start, or a file could not be written
  3    the run is not valid: the generator or the machine was too slow
  130  stopped by Ctrl-C; the report is written
"""


def read_run(args: argparse.Namespace, words: Sequence[str], typed: str, url: str) -> None:
    """Check the shared options; the namespace gets ``target``, ``client``, ``probes``, ``slo``, ``command``.

    The command begins with ``words`` and holds no secrets. The target is ``url``, a part of the typed URL.
    """
    problems: ProblemList = args.problems
    if args.json is not None and args.html is not None and args.json.resolve() == args.html.resolve():
        problems.add("--html", f"{args.html} is the file of --json: use another file")
    args.slo = args.slo or Objectives()
    args.target = _target(args, typed, url)
    args.client = ClientOptions(
        connections=args.connections,
        max_inflight=args.max_inflight,
        timeout_s=args.timeout,
        drain_s=args.drain,
    )
    args.probes = tuple(probe for probe in (args.watch, args.metrics) if probe is not None)
    args.command = shlex.join(["autoglm-throttle", *words, *given_words(args)])


def _target(args: argparse.Namespace, typed: str, url: str) -> TargetUrl:
    problems: ProblemList = args.problems
    tls = TlsOptions(verify=not args.insecure, ca_file=args.ca_file, server_name=args.server_name)

    def parse() -> TargetUrl:
        if "://" not in typed and not typed.startswith("/"):
            raise TrafficError(f"{typed!r} must begin with http:// or https://: did you mean http://{typed}?")
        return TargetUrl.parse(
            url,
            headers=tuple(args.header),
            tls=tls,
            priority_header=args.priority_header,
            identity_header=args.identity_header,
            cost_header=args.cost_header,
        )

    target = problems.make("URL", parse, TargetUrl(port=80))
    if args.ca_file is not None:
        problems.make("--ca-file", target.tls_context, None)
    if not (args.yes or is_loopback(target.host)):
        problems.add("URL", f"{target.host} is not this machine: add --yes if you may load it")
    return target
