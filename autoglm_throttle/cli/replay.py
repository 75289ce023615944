"""``replay``: sends recorded traffic to a service, and compares its outcome with the recording."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.cli.options import (
    RUN_GROUPS,
    RUN_STATUSES,
    Option,
    OptionGroups,
    ProblemList,
    above_zero,
    add_options,
    given_words,
    read_run,
    run_command,
    time_s,
    whole_number,
)
from autoglm_throttle.cli.output import EXIT_OK, write
from autoglm_throttle.cli.run import check_probes, defer_signals, preview, run_info, run_load, write_report
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import format_plan, parse_duration, parse_number
from autoglm_throttle.traffic.replay import (
    ReplayOptions,
    Selection,
    compare_results,
    comparison_lines,
    open_replay,
)
from autoglm_throttle.traffic.report import ReplayInfo, make
from autoglm_throttle.traffic.report.schema import KIND, Part

EXAMPLES: Final = """\
examples:
  autoglm-throttle replay traffic.jsonl http://127.0.0.1:8000
  autoglm-throttle replay traffic.jsonl.gz http://127.0.0.1:8000 --speed 10 --max-gap 5s --fill \\
      --identity-header x-api-key --check 1% --html report.html
  autoglm-throttle replay traffic.jsonl http://127.0.0.1:8000 --rate 500 --loop forever --duration 10m

"""


NOT_COMPARED: Final = "the file contains no responses to compare with"

START_BYTES: Final = 4096  # Bytes of a file inspected to detect its kind
REPORT_START: Final = rf'\{{\s*"schema": \d+,\s*"kind": "{KIND}"'  # Of a file easily mistaken for a recording


def _loops(text: str) -> int | None:
    return None if text == "forever" else whole_number(text)


def share(text: str) -> float:
    """Parse a share such as 0.1 or 10%."""
    value = parse_number(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if not 0.0 <= value <= 1.0:
        raise TrafficError(f"{text!r} is not a share, such as 0.1 or 10%")
    return value


_DURATION: Final = "longest duration of the replay (default: until the last loop ends)"
_SAMPLE: Final = "share of the clients to replay, each with all its requests, such as 10%%"
_DECIDED: Final = "send the priority that the throttle assigned even if the request named none"
_CHECK: Final = "exit with 1 if the outcome of more requests than this differs from the recording"

PLAYBACK: Final = "selection and speed"
_PLAYBACK: Final = (
    Option("--speed", "X", "speed factor", above_zero, "1"),
    Option("--rate", "R", "mean rate of the replay in requests/s, instead of --speed", above_zero),
    Option("--loop", "N|forever", "number of repetitions; forever needs --duration", _loops, "1"),
    Option("--duration", "TIME", _DURATION, time_s),
    Option("--max-gap", "TIME", "shorten longer gaps of the recording to this (default: none)", time_s),
    Option("--sample", "SHARE", _SAMPLE, share, "1"),
    Option("--from", "TIME", "skip requests recorded earlier", parse_duration),
    Option("--to", "TIME", "skip requests recorded from this time on", parse_duration),
    Option("--body", "FILE", "body to use where none was recorded", lambda name: Path(name).read_bytes()),
    Option("--fill", None, "use spaces of the recorded length instead"),
    Option("--decided", None, _DECIDED),
    Option("--check", "SHARE", _CHECK, share),
)
GROUPS: Final[OptionGroups] = {PLAYBACK: _PLAYBACK, **RUN_GROUPS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.usage = "autoglm-throttle replay FILE URL [options]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES + RUN_STATUSES
    parser.add_argument("file", metavar="FILE", help="a recording, a .gor file, or a CSV of token numbers")
    parser.add_argument(
        "url", metavar="URL", help="URL of the service; its path is prefixed to the recorded paths"
    )
    add_options(parser, GROUPS)


def run(args: argparse.Namespace) -> int:
    """Play a recording; return the status of ``load``, or 1 if more outcomes differ than ``--check``."""
    return run_command("replay", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    path, selection, options = _read_arguments(args)
    played = open_replay(path, selection, options)
    sys.stderr.writelines(f"{path}: {note}\n" for note in played.notes)
    args.slo.check(played.load.plan.names)
    if args.dry_run:
        header = preview(args, len(played.load.clients or "1"))
        write("\n".join([*header, "", *format_plan(played.load.plan)]))
        return EXIT_OK
    check_probes(args)
    with defer_signals() as signal_guard:
        result = run_load(played.load, args, signal_guard)
        comparison = compare_results(played, result)
        known = run_info(args, " ".join([args.file, *given_words(args, PLAYBACK)]), result.run_cost.loop)
        objectives = () if args.check is None else (_checked(args.check, comparison),)
        report = make(result, replace(known, arrivals="recorded", replay=ReplayInfo(comparison, objectives)))
        more = comparison_lines(comparison) if comparison else [NOT_COMPARED]
        return write_report(report, args, ["", *more])


def _read_arguments(args: argparse.Namespace) -> tuple[Path, Selection, ReplayOptions]:
    """Check a command line, and raise all its problems together."""
    problems: ProblemList = args.problems
    path = problems.make("FILE", lambda: _existing(args.file), Path())
    selection = problems.make("selection", lambda: _selection(args), Selection())
    read_run(args, ["replay", args.file, args.url], args.url, args.url)
    known = {"priority_header": args.priority_header, "decided": args.decided}
    options = problems.make(
        "--fill", lambda: ReplayOptions(body=args.body, fill=args.fill, **known), ReplayOptions()
    )
    problems.raise_if_any()
    return path, selection, options


def _selection(args: argparse.Namespace) -> Selection:
    return Selection(
        speed=args.speed,
        rate_rps=args.rate,
        loops=args.loop,
        duration_s=args.duration,
        max_gap_s=args.max_gap,
        sample=args.sample,
        from_s=getattr(args, "from"),
        to_s=args.to,
    )


def _existing(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise TrafficError(f"there is no file {name}")
    with path.open("rb") as file:
        start = file.read(START_BYTES).decode("utf-8", "replace")
    if re.match(REPORT_START, start):
        raise TrafficError(f"{name} is a report, not a recording: see load compare")
    return path


def _checked(limit: float, comparison: Mapping[str, Any] | None) -> Part:
    """Return the objective of ``--check``; it fails for a file without recorded responses."""
    return {
        "term": f"--check {limit:.2%}",
        "value": None if comparison is None else comparison["differ"]["ratio"],
        "unit": "ratio",
        "holds": comparison is not None and comparison["differ"]["ratio"] <= limit,
    }
