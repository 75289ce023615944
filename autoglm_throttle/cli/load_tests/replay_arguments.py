"""Arguments of ``replay``: one value, or every problem at once."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autoglm_throttle.cli.load_tests import probe_options, report_options, send_options
from autoglm_throttle.cli.load_tests.option import Option, add_options, command
from autoglm_throttle.cli.load_tests.problems import ProblemList
from autoglm_throttle.cli.load_tests.report_options import ReportOptions
from autoglm_throttle.cli.load_tests.request_options import above_zero
from autoglm_throttle.cli.load_tests.send_options import SendOptions, time_s, whole_number
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import parse_duration, parse_number
from autoglm_throttle.traffic.probes import Probe
from autoglm_throttle.traffic.replay import Fill, Selection
from autoglm_throttle.traffic.report.schema import KIND

PLAYBACK_OPTIONS: Final = (
    Option("--speed", "X", "speed factor (default: 1)"),
    Option("--rate", "R", "mean rate of the replay in requests/s, instead of --speed"),
    Option("--loop", "N|forever", "number of repetitions; forever needs --duration (default: 1)"),
    Option("--duration", "TIME", "longest duration of the replay (default: until the last loop ends)"),
    Option("--max-gap", "TIME", "shorten longer gaps of the recording to this (default: none)"),
    Option(
        "--sample",
        "SHARE",
        "share of the clients to replay, each with all its requests, such as 10%% (default: all)",
    ),
    Option("--from", "TIME", "skip requests recorded earlier"),
    Option("--to", "TIME", "skip requests recorded from this time on"),
    Option("--body", "FILE", "body to use where none was recorded"),
    Option("--fill", None, "use spaces of the recorded length instead"),
    Option(
        "--decided",
        None,
        "send the priority that the throttle assigned even if the request named none",
    ),
    Option(
        "--check", "SHARE", "exit with 1 if the outcome of more requests than this differs from the recording"
    ),
)

START_BYTES: Final = 4096
"""Bytes of a file inspected to detect its kind."""

OTHER_FILE_KINDS: Final = {
    rf'\A\{{\s*"schema": \d+,\s*"kind": "{KIND}"': "is a report, not a recording: see load compare",
}
"""Files easily mistaken for a recording: pattern of their start -> error message."""

OPTIONS: Final = (
    *PLAYBACK_OPTIONS,
    *send_options.FIELD_OPTIONS,
    *send_options.EFFORT_OPTIONS,
    *report_options.OPTIONS,
    *probe_options.OPTIONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayArguments:
    """Parsed arguments of ``replay``."""

    path: Path
    selection: Selection
    fill: Fill
    decided: bool
    limit: float | None
    """Share of the requests that may end otherwise; None: any."""
    playback_text: str
    """Playback options as text."""
    send_options: SendOptions
    report_options: ReportOptions
    probes: tuple[Probe, ...]
    command: str
    """In a form without secrets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, "selection and speed", PLAYBACK_OPTIONS)
    add_options(parser, "target and header fields", send_options.FIELD_OPTIONS)
    add_options(parser, "sending", send_options.EFFORT_OPTIONS)
    add_options(parser, "objectives and report", report_options.OPTIONS)
    add_options(parser, "monitoring during the run, once a second", probe_options.OPTIONS)


def read(args: argparse.Namespace) -> ReplayArguments:
    """Read a command line.

    Raises:
        UsageError: with every problem that is visible before anything is sent.
    """
    problems = ProblemList()
    path = problems.read("FILE", _existing, args.file, Path())
    arguments = ReplayArguments(
        path=path,
        selection=_selection(args, problems),
        fill=_fill(args, problems),
        decided=args.decided,
        limit=problems.read("--check", share, args.check, None),
        playback_text=" ".join(
            [args.file, *(word for option in PLAYBACK_OPTIONS for word in option.tokens(args))]
        ),
        send_options=send_options.read(args, args.url, args.url, problems),
        report_options=report_options.read(args, problems),
        probes=probe_options.read(args, problems),
        command=command(["replay", args.file, args.url], OPTIONS, args),
    )
    problems.raise_if_any()
    return arguments


def _selection(args: argparse.Namespace, problems: ProblemList) -> Selection:
    speed = problems.read("--speed", above_zero, args.speed, 1.0)
    rate_rps = problems.read("--rate", above_zero, args.rate, None)
    once: int | None = 1
    loops = problems.read("--loop", _loops, args.loop, once)
    duration_s = problems.read("--duration", time_s, args.duration, None)
    max_gap_s = problems.read("--max-gap", time_s, args.max_gap, None)
    sample = problems.read("--sample", share, args.sample, 1.0)
    from_s = problems.read("--from", parse_duration, getattr(args, "from"), None)
    to_s = problems.read("--to", parse_duration, args.to, None)
    return problems.make(
        "selection",
        lambda: Selection(
            speed=speed,
            rate_rps=rate_rps,
            loops=loops,
            duration_s=duration_s,
            max_gap_s=max_gap_s,
            sample=sample,
            from_s=from_s,
            to_s=to_s,
        ),
        Selection(),
    )


def _fill(args: argparse.Namespace, problems: ProblemList) -> Fill:
    body = problems.read("--body", _bytes, args.body, None)
    return problems.make("--fill", lambda: Fill(body, spaces=args.fill), Fill())


def _bytes(name: str) -> bytes | None:
    return Path(name).read_bytes()


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise TrafficError(f"there is no file {name}")
    with path.open("rb") as file:
        start = file.read(START_BYTES).decode("utf-8", "replace")
    for mark, problem in OTHER_FILE_KINDS.items():
        if re.search(mark, start):
            raise TrafficError(f"{name} {problem}")
    return path


def _loops(text: str) -> int | None:
    return None if text == "forever" else whole_number(1)(text)


def share(text: str) -> float:
    """Parse a share such as 0.1 or 10%.

    Raises:
        TrafficError: no share, or one above 1.
    """
    value = parse_number(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 <= value <= 1.0:
        raise TrafficError(f"{text!r} is not a share, such as 0.1 or 10%")
    return value
