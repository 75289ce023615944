"""Probes of the service under load: the options that ``load`` and ``replay`` share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Final

from autoglm_throttle.cli.load_tests.option import Option
from autoglm_throttle.cli.load_tests.problems import ProblemList
from autoglm_throttle.cli.load_tests.send_options import whole_number
from autoglm_throttle.settings.problems import masked_url
from autoglm_throttle.traffic.probes import MetricsProbe, Probe, ProcessProbe

OPTIONS: Final = (
    Option(
        "--watch",
        "PID",
        "CPU and memory of this process and its children; without --metrics this machine's GPUs, too",
    ),
    Option(
        "--metrics",
        "URL",
        "metrics of a service with this library: its factor, requests in flight and queued, GPUs",
        shown=masked_url,
    ),
)


def check_probes(probes: Iterable[Probe]) -> None:
    """Sample once the probes that may be misconfigured, before anything is sent.

    Raises:
        TrafficError: a page of metrics cannot be read.
    """
    for probe in probes:
        if isinstance(probe, MetricsProbe):
            probe.check()


def read(args: argparse.Namespace, problems: ProblemList) -> tuple[Probe, ...]:
    """Create the probes of a command line."""
    probes: list[Probe | None] = [
        problems.read("--watch", lambda text: ProcessProbe(whole_number(1)(text)), args.watch, None),
        problems.read("--metrics", MetricsProbe, args.metrics, None),
    ]
    if args.watch is not None and args.metrics is None:
        from autoglm_throttle.cli.load_tests.local_gpus import LocalGpuProbe

        probes.append(LocalGpuProbe())
    return tuple(probe for probe in probes if probe is not None)
