"""Arguments of ``replay``: one value, or every problem at once."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.lab import judging, sending, watching
from autoglm_throttle.cli.lab.faults import Faults
from autoglm_throttle.cli.lab.judging import Judging
from autoglm_throttle.cli.lab.option import Option, add_options, command
from autoglm_throttle.cli.lab.requested import above_zero
from autoglm_throttle.cli.lab.sending import Sending, time_s, whole
from autoglm_throttle.traffic.arrivals import duration, number
from autoglm_throttle.traffic.convert import Fill
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.replay import Cut
from autoglm_throttle.traffic.report.schema import KIND
from autoglm_throttle.traffic.watch import Look

PLAYED: Final = (
    Option("--speed", "X", "how many times faster (default: 1)"),
    Option("--rate", "R", "the mean rate to play at, in requests/s, instead of a speed"),
    Option("--loop", "N|forever", "how often; forever needs --duration (default: 1)"),
    Option("--duration", "TIME", "where it ends at the latest (default: with the last loop)"),
    Option("--max-gap", "TIME", "shorten longer gaps of the recording to this (default: none)"),
    Option("--sample", "SHARE", "of the clients, each with all its requests, such as 10%% (default: all)"),
    Option("--from", "TIME", "leave out what was recorded earlier"),
    Option("--to", "TIME", "leave out what was recorded from here on"),
    Option("--body", "FILE", "stands in for bodies that were not recorded"),
    Option("--fill", None, "spaces of the recorded length stand in for them"),
    Option(
        "--decided",
        None,
        "state the priority that the throttle decided on also where the request stated none",
    ),
    Option("--check", "SHARE", "exit with 1 if more requests than this end otherwise than recorded"),
)

START_BYTES: Final = 4096
"""Bytes of a file inspected to detect its kind."""

OTHERS: Final = {
    rf'\A\{{\s*"schema": \d+,\s*"kind": "{KIND}"': "is a report and no recording: see load compare",
    r'\A\s*\{(?=[^\n]*"method":)[^\n]*"url":\s*"https?:': (
        "holds targets of vegeta, which have no times: give them some by"
        " record convert FILE OUT.jsonl --from vegeta --shape SHAPE"
    ),
}
"""Files easily mistaken for a recording: pattern of their start -> error message."""

OPTIONS: Final = (*PLAYED, *sending.FIELDS, *sending.EFFORT, *judging.OPTIONS, *watching.OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Parsed arguments of ``replay``."""

    path: Path
    cut: Cut
    fill: Fill
    decided: bool
    limit: float | None
    """Share of the requests that may end otherwise; None: any."""
    played: str
    """Playback options as text."""
    sending: Sending
    judging: Judging
    looks: tuple[Look, ...]
    command: str
    """In a form without secrets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, "what is played, and how fast", PLAYED)
    add_options(parser, "where, and with which fields", sending.FIELDS)
    add_options(parser, "how it is sent", sending.EFFORT)
    add_options(parser, "how it is judged and told", judging.OPTIONS)
    add_options(parser, "what is watched meanwhile, once a second", watching.OPTIONS)


def read(args: argparse.Namespace) -> Asked:
    """Read a command line.

    Raises:
        UsageError: with every problem that is visible before anything is sent.
    """
    faults = Faults()
    path = faults.read("FILE", _existing, args.file, Path())
    asked = Asked(
        path=path,
        cut=_cut(args, faults),
        fill=_fill(args, faults),
        decided=args.decided,
        limit=faults.read("--check", share, args.check, None),
        played=" ".join([args.file, *(word for option in PLAYED for word in option.words(args))]),
        sending=sending.read(args, args.url, args.url, faults),
        judging=judging.read(args, faults),
        looks=watching.read(args, faults),
        command=command(["replay", args.file, args.url], OPTIONS, args),
    )
    faults.end()
    return asked


def _cut(args: argparse.Namespace, faults: Faults) -> Cut:
    speed = faults.read("--speed", above_zero, args.speed, 1.0)
    rate_rps = faults.read("--rate", above_zero, args.rate, None)
    once: int | None = 1
    loops = faults.read("--loop", _loops, args.loop, once)
    duration_s = faults.read("--duration", time_s, args.duration, None)
    max_gap_s = faults.read("--max-gap", time_s, args.max_gap, None)
    sample = faults.read("--sample", share, args.sample, 1.0)
    from_s = faults.read("--from", duration, getattr(args, "from"), None)
    to_s = faults.read("--to", duration, args.to, None)
    return faults.make(
        "what is played",
        lambda: Cut(
            speed=speed,
            rate_rps=rate_rps,
            loops=loops,
            duration_s=duration_s,
            max_gap_s=max_gap_s,
            sample=sample,
            from_s=from_s,
            to_s=to_s,
        ),
        Cut(),
    )


def _fill(args: argparse.Namespace, faults: Faults) -> Fill:
    body = faults.read("--body", _bytes, args.body, None)
    return faults.make("--fill", lambda: Fill(body, spaces=args.fill), Fill())


def _bytes(name: str) -> bytes | None:
    return Path(name).read_bytes()


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise TrafficError(f"there is no file {name}")
    with path.open("rb") as file:
        start = file.read(START_BYTES).decode("utf-8", "replace")
    for mark, fault in OTHERS.items():
        if re.search(mark, start):
            raise TrafficError(f"{name} {fault}")
    return path


def _loops(word: str) -> int | None:
    return None if word == "forever" else whole(1)(word)


def share(word: str) -> float:
    """Parse a share such as 0.1 or 10%.

    Raises:
        TrafficError: no share, or one above 1.
    """
    value = number(word.removesuffix("%")) / (100.0 if word.endswith("%") else 1.0)
    if not 0.0 <= value <= 1.0:
        raise TrafficError(f"{word!r} is no share: 0.1 or 10%")
    return value
