"""Probes of the service under load: the options that ``load`` and ``replay`` share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Final

from autoglm_throttle.cli.lab.faults import Faults
from autoglm_throttle.cli.lab.option import Option
from autoglm_throttle.cli.lab.sending import whole
from autoglm_throttle.settings.masked import masked_url
from autoglm_throttle.traffic.watch import Look, MetricsLook, ProcessLook

OPTIONS: Final = (
    Option(
        "--watch",
        "PID",
        "CPU and memory of this process and its children; without --metrics this machine's GPUs, too",
    ),
    Option(
        "--metrics",
        "URL",
        "metrics of a service with this library: its factor, requests inside and waiting, GPUs",
        shown=masked_url,
    ),
)


def ready(looks: Iterable[Look]) -> None:
    """Sample once the probes that may be misconfigured, before anything is sent.

    Raises:
        TrafficError: a page of metrics cannot be read.
    """
    for look in looks:
        if isinstance(look, MetricsLook):
            look.ready()


def read(args: argparse.Namespace, faults: Faults) -> tuple[Look, ...]:
    """Create the probes of a command line."""
    looks: list[Look | None] = [
        faults.read("--watch", lambda text: ProcessLook(whole(1)(text)), args.watch, None),
        faults.read("--metrics", MetricsLook, args.metrics, None),
    ]
    if args.watch is not None and args.metrics is None:
        from autoglm_throttle.cli.lab.local_gpus import LocalGpus

        looks.append(LocalGpus())
    return tuple(look for look in looks if look is not None)
