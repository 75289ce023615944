"""``replay``: sends recorded traffic to a service, and compares its outcome with the recording."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from autoglm_throttle.cli.lab import preview, replay_asked
from autoglm_throttle.cli.lab.faults import guarded
from autoglm_throttle.cli.lab.holding import holding
from autoglm_throttle.cli.lab.replay_asked import Asked
from autoglm_throttle.cli.lab.running import carry_out
from autoglm_throttle.cli.lab.telling import facts, tell
from autoglm_throttle.cli.lab.watching import ready
from autoglm_throttle.cli.output import FINE, write
from autoglm_throttle.traffic.arrivals import timetable
from autoglm_throttle.traffic.replay import Manner, Replay, differences, exceeds, open_replay, told
from autoglm_throttle.traffic.report import make
from autoglm_throttle.traffic.report.schema import Judged
from autoglm_throttle.traffic.result import Result

EXAMPLES: Final = """\
examples:
  autoglm-throttle replay traffic.jsonl http://127.0.0.1:8000
  autoglm-throttle replay traffic.jsonl.gz http://127.0.0.1:8000 --speed 10 --max-gap 5s --fill \\
      --identity-header x-api-key --check 1% --html report.html
  autoglm-throttle replay traffic.jsonl http://127.0.0.1:8000 --rate 500 --loop forever --duration 10m

exit status: 0 done and all objectives hold, 1 one failed or --check did, 2 it could not begin, 3 the run is
not valid because the generator or the machine was too slow, 130 stopped by Ctrl-C (the report is written)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.usage = "autoglm-throttle replay FILE URL [options]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument(
        "file", metavar="FILE", help="a recording, a HAR or .gor file, or a CSV of token numbers"
    )
    parser.add_argument("url", metavar="URL", help="of the service; its path is put before the recorded ones")
    replay_asked.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Play a recording.

    Returns:
        As of ``load``; 1 also if more outcomes differ than ``--check`` allows.
    """
    return guarded("replay", lambda: _run(replay_asked.read(args)))


def _run(asked: Asked) -> int:
    manner = Manner(
        bodies=asked.fill, priority_header=asked.sending.target.priority_header, decided=asked.decided
    )
    played = open_replay(asked.path, asked.cut, manner)
    sys.stderr.writelines(f"{asked.path}: {note}\n" for note in played.notes)
    asked.judging.objectives.check(played.load.plan.names)
    if asked.judging.dry_run:
        told_first = preview.of_replay(asked.sending, asked.judging, len(played.load.clients or "1"))
        write("\n".join([*told_first, *timetable(played.load.plan)]))
        return FINE
    ready(asked.looks)
    with holding() as held:
        result = carry_out(played.load, asked.sending, asked.looks, quiet=asked.judging.quiet, held=held)
        return _tell(asked, played, result)


def _tell(asked: Asked, played: Replay, result: Result) -> int:
    """Write the report and the comparison with the recording; return the exit status."""
    found = differences(played, result)
    known = facts(asked.judging, asked.sending, asked.played, asked.command, result.effort.loop)
    judged = () if asked.limit is None else (_checked(asked.limit, found),)
    report = make(result, replace(known, arrivals="recorded", replay=found, judged=judged))
    more = ["", *told(found)] if found else ["", "the file tells of no answers to compare with"]
    return tell(report, asked.judging, more)


def _checked(limit: float, found: Mapping[str, Any] | None) -> Judged:
    """Return the objective of ``--check``; it fails for a file without recorded responses."""
    return {
        "term": f"--check {limit:.2%}",
        "value": None if found is None else found["differ"]["ratio"],
        "unit": "ratio",
        "holds": found is not None and not exceeds(found, limit),
    }
