"""Target, sending, objectives and report of a run: the options that ``load`` and ``replay`` share."""

from __future__ import annotations

import argparse
import ipaddress
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from autoglm_throttle.cli.load_options import (
    HIDDEN,
    Option,
    OptionGroups,
    ProblemList,
    is_json,
    option_words,
    parse_options,
    time_s,
    whole_number,
)
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.settings.groups.gpu import GpuSettings
from autoglm_throttle.settings.problems import masked_url
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, TargetUrl, TlsOptions
from autoglm_throttle.traffic.probes import MetricsProbe, Probe, ProbeTargetLostError, ProcessProbe
from autoglm_throttle.traffic.report import LIMITS_S, Objectives
from autoglm_throttle.types import GpuProvider, GpuSample, Priority
from autoglm_throttle.types.errors import NoSourceError

# Header fields that the generator sets itself.
FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect"})


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


_CLIENT: Final = ClientOptions()
_LIMITS: Final = ",".join(f"{priority.label}={limit_s:g}s" for priority, limit_s in LIMITS_S.items())

RUN_GROUPS: Final[OptionGroups] = {  # The options that ``load`` and ``replay`` share
    "target and header fields": (
        Option(
            "--header",
            "'NAME: VALUE'",
            "a header field of every request",
            _header,
            many=True,
            shown=lambda text: f"{text.partition(':')[0]}: {HIDDEN}",
        ),
        Option("--priority-header", "NAME", f"header field for the priority (default: {PRIORITY_HEADER})"),
        Option(
            "--identity-header",
            "NAME",
            "header field for the caller, so that user limits apply (default: none)",
        ),
        Option("--cost-header", "NAME", "header field for the cost of the request (default: none)"),
        Option("--ca-file", "FILE", "PEM of the authorities to trust with https, instead of the system's"),
        Option("--server-name", "NAME", "expected name in the certificate (default: the host of URL)"),
        Option("--insecure", None, "accept any certificate"),
        Option("--yes", None, "confirm that URL is another machine that you may load"),
    ),
    "sending": (
        Option(
            "--connections",
            "N",
            f"connections opened before the start (default: {_CLIENT.connections})",
            whole_number(1),
            _CLIENT.connections,
        ),
        Option(
            "--max-inflight",
            "N",
            "with more requests in flight the next one is dropped and counted "
            f"(default: {_CLIENT.max_inflight})",
            whole_number(1),
            _CLIENT.max_inflight,
        ),
        Option(
            "--timeout",
            "TIME",
            f"from a request's intended start to its end (default: {_CLIENT.timeout_s:g}s)",
            time_s,
            _CLIENT.timeout_s,
        ),
        Option(
            "--drain",
            "TIME",
            f"time to wait for responses after the last request (default: {_CLIENT.drain_s:g}s)",
            time_s,
            _CLIENT.drain_s,
        ),
        Option("--spin", None, "start requests with 10 us precision instead of 1 ms, using a whole core"),
    ),
    "objectives and report": (
        Option(
            "--slo",
            "TERMS",
            "objectives, such as 'p99<500ms,error<0.5%%,goodput.high>0.99,rps>=100/s'",
            _objectives,
            Objectives(),
        ),
        Option(
            "--within",
            "LIMITS",
            f"a response later than this is not goodput (default: {_LIMITS})",
            _limits,
            LIMITS_S,
        ),
        Option("--title", "TEXT", "title of the report (default: host and shape)"),
        Option("--json", "FILE", "write the report as JSON", _writable),
        Option("--html", "FILE", "write the report as one HTML page with plots", _writable),
        Option("--format", "text|json", "output format (default: text)", is_json, default=False),
        Option("--quiet", None, "show no progress"),
        Option("--dry-run", None, "print the plan, and send nothing"),
    ),
    "monitoring during the run, once a second": (
        Option(
            "--watch",
            "PID",
            "CPU and memory of this process and its children; without --metrics this machine's GPUs, too",
            lambda text: ProcessProbe(whole_number(1)(text)),
        ),
        Option(
            "--metrics",
            "URL",
            "metrics of a service with this library: its factor, requests in flight and queued, GPUs",
            MetricsProbe,
            shown=masked_url,
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Target, options of sending, objectives and report of a run."""

    target: TargetUrl
    client: ClientOptions
    objectives: Objectives
    limits_s: Mapping[Priority, float]
    title: str | None
    json: Path | None
    html: Path | None
    as_json: bool  # Whether the report itself goes to standard output as JSON
    quiet: bool
    dry_run: bool
    probes: tuple[Probe, ...]
    command: str  # The command line in a form that can be run again, without secrets


def read_run(
    args: argparse.Namespace, words: Sequence[str], groups: OptionGroups, url: str, problems: ProblemList
) -> RunOptions:
    """Read the shared options.

    Args:
        args: the parsed arguments; the attribute ``url`` is the URL as it was typed.
        words: the command and its positional arguments, without secrets.
        groups: all options of the command.
        url: with the path that all requests share, or without one.
        problems: collects problems.
    """
    values = parse_options(args, RUN_GROUPS, problems)
    if values.json is not None and values.html is not None and values.json.resolve() == values.html.resolve():
        problems.add("--html", f"{values.html} is the file of --json: use another file")
    options = [option for group in groups.values() for option in group]
    return RunOptions(
        target=_target(values, url, problems),
        client=ClientOptions(
            connections=values.connections,
            max_inflight=values.max_inflight,
            timeout_s=values.timeout,
            drain_s=values.drain,
            spin=values.spin,
        ),
        objectives=values.slo,
        limits_s=values.within,
        title=values.title,
        json=values.json,
        html=values.html,
        as_json=values.format,
        quiet=values.quiet,
        dry_run=values.dry_run,
        probes=_probes(values, args),
        command=shlex.join(["autoglm-throttle", *words, *option_words(args, options)]),
    )


def _target(values: argparse.Namespace, url: str, problems: ProblemList) -> TargetUrl:
    typed: str = values.url
    names = ("priority_header", "identity_header", "cost_header")
    given = {name: getattr(values, name) for name in names if getattr(values, name) is not None}
    tls = TlsOptions(verify=not values.insecure, ca_file=values.ca_file, server_name=values.server_name)

    def parse() -> TargetUrl:
        if "://" not in typed and not typed.startswith("/"):
            raise TrafficError(f"{typed!r} must begin with http:// or https://: did you mean http://{typed}?")
        return TargetUrl.parse(url, headers=tuple(filter(None, values.header)), tls=tls, **given)

    target = problems.make("URL", parse, TargetUrl(port=80))
    if values.ca_file is not None:
        problems.make("--ca-file", target.tls_context, None)
    if not (values.yes or is_loopback(target.host)):
        problems.add("URL", f"{target.host} is not this machine: add --yes if you may load it")
    return target


def _probes(values: argparse.Namespace, args: argparse.Namespace) -> tuple[Probe, ...]:
    probes = [probe for probe in (values.watch, values.metrics) if probe is not None]
    if args.watch is not None and args.metrics is None:
        probes.append(LocalGpuProbe())
    return tuple(probes)


def _memory_ratio(device: GpuSample) -> float | None:
    if device.memory_used_bytes is None or not device.memory_total_bytes:
        return None
    return device.memory_used_bytes / device.memory_total_bytes


# Number of the report, and its value for one device; ratios are averaged over devices, power is summed.
_GPU_NUMBERS: Final[tuple[tuple[str, Callable[[GpuSample], float | None]], ...]] = (
    ("gpu_utilization_ratio", lambda one: None if one.utilization_pct is None else one.utilization_pct / 100),
    ("gpu_memory_ratio", _memory_ratio),
    ("gpu_power_w", lambda one: one.power_w),
)


class LocalGpuProbe:
    """Samples all devices of the driver; without a driver there are no samples."""

    def __init__(self, provider: GpuProvider | None = None) -> None:
        self.name: str = "GPUs"
        self._provider = providers(GpuSettings())[0] if provider is None else provider

    def sample(self, now: float) -> dict[str, float]:  # noqa: ARG002 - the driver reports the present
        """Return mean utilization and memory fill, and total power."""
        try:
            devices = self._provider.read()
        except NoSourceError:
            raise ProbeTargetLostError from None
        sample = {}
        for name, read in _GPU_NUMBERS:
            values = [value for value in map(read, devices) if value is not None]
            if values:
                sample[name] = sum(values) / (len(values) if name.endswith("_ratio") else 1)
        return sample
