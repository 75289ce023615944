"""``replay``: sends recorded traffic to a service, and compares its outcome with the recording."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoglm_throttle.cli.load_tests import preview, replay_arguments
from autoglm_throttle.cli.load_tests.probe_options import check_probes
from autoglm_throttle.cli.load_tests.problems import run_command
from autoglm_throttle.cli.load_tests.replay_arguments import ReplayArguments
from autoglm_throttle.cli.load_tests.report_output import run_info, write_report
from autoglm_throttle.cli.load_tests.run import run_load
from autoglm_throttle.cli.load_tests.signal_guard import defer_signals
from autoglm_throttle.cli.output import EXIT_OK, write
from autoglm_throttle.traffic.plan import format_plan
from autoglm_throttle.traffic.replay import (
    Replay,
    ReplayOptions,
    compare_results,
    comparison_lines,
    is_above,
    open_replay,
)
from autoglm_throttle.traffic.report import ReplayInfo, make
from autoglm_throttle.traffic.report.schema import ObjectiveResult
from autoglm_throttle.traffic.result import Result

EXAMPLES: Final = """\
examples:
  autoglm-throttle replay traffic.jsonl http://127.0.0.1:8000
  autoglm-throttle replay traffic.jsonl.gz http://127.0.0.1:8000 --speed 10 --max-gap 5s --fill \\
      --identity-header x-api-key --check 1% --html report.html
  autoglm-throttle replay traffic.jsonl http://127.0.0.1:8000 --rate 500 --loop forever --duration 10m

exit status:
  0    all objectives hold; without objectives, a request succeeded
  1    an objective or --check failed; without objectives, no request succeeded or the service went down
  2    the run could not start, or a file could not be written
  3    the run is not valid: the generator or the machine was too slow
  130  stopped by Ctrl-C; the report is written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.usage = "autoglm-throttle replay FILE URL [options]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", help="a recording, a .gor file, or a CSV of token numbers")
    parser.add_argument(
        "url", metavar="URL", help="URL of the service; its path is prefixed to the recorded paths"
    )
    replay_arguments.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Play a recording.

    Returns:
        As of ``load``; 1 also if more outcomes differ than ``--check`` allows.
    """
    return run_command("replay", lambda: _run(replay_arguments.read(args)))


def _run(arguments: ReplayArguments) -> int:
    replay_options = ReplayOptions(
        bodies=arguments.fill,
        priority_header=arguments.send_options.target.priority_header,
        decided=arguments.decided,
    )
    played = open_replay(arguments.path, arguments.selection, replay_options)
    sys.stderr.writelines(f"{arguments.path}: {note}\n" for note in played.notes)
    arguments.report_options.objectives.check(played.load.plan.names)
    if arguments.report_options.dry_run:
        header = preview.replay_preview(
            arguments.send_options, arguments.report_options, len(played.load.clients or "1")
        )
        write("\n".join([*header, *format_plan(played.load.plan)]))
        return EXIT_OK
    check_probes(arguments.probes)
    with defer_signals() as signal_guard:
        result = run_load(
            played.load,
            arguments.send_options,
            arguments.probes,
            quiet=arguments.report_options.quiet,
            signal_guard=signal_guard,
        )
        return _report(arguments, played, result)


def _report(arguments: ReplayArguments, played: Replay, result: Result) -> int:
    """Write the report and the comparison with the recording; return the exit status."""
    comparison = compare_results(played, result)
    known = run_info(
        arguments.report_options,
        arguments.send_options,
        arguments.playback_text,
        arguments.command,
        result.run_cost.loop,
    )
    objectives = () if arguments.limit is None else (_checked(arguments.limit, comparison),)
    report = make(result, replace(known, arrivals="recorded", replay=ReplayInfo(comparison, objectives)))
    more = (
        ["", *comparison_lines(comparison)]
        if comparison
        else ["", "the file contains no responses to compare with"]
    )
    return write_report(report, arguments.report_options, more)


def _checked(limit: float, comparison: Mapping[str, Any] | None) -> ObjectiveResult:
    """Return the objective of ``--check``; it fails for a file without recorded responses."""
    return {
        "term": f"--check {limit:.2%}",
        "value": None if comparison is None else comparison["differ"]["ratio"],
        "unit": "ratio",
        "holds": comparison is not None and not is_above(comparison, limit),
    }
