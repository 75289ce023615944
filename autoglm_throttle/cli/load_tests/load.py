"""``load``: sends load to a service and reports the results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from autoglm_throttle.cli.load_tests import load_arguments, load_run
from autoglm_throttle.cli.load_tests.compare import compare_files
from autoglm_throttle.cli.load_tests.problems import UsageError, run_command

SHAPES: Final = (
    "fixed:RATE:TIME                  one rate",
    "step:R1,R2,...:TIME              these rates, each for TIME",
    "step:FROM:TO:STEPS:TIME          equal steps, each for TIME",
    "spike:BASE:PEAK:BASE_TIME:PEAK_TIME",
    "                                 a rate, a higher one, the first again",
    "ramp:FROM:TO:TIME                a rate that rises or falls linearly",
    "users:N:TIME[:THINK]             users that wait for each response, then think (closed loop)",
    "users:FROM:TO:STEPS:TIME         the same in equal steps",
    "trace:PATH                       the times of a recording, or a CSV of token numbers with its requests",
)

EXAMPLES: Final = """\
shapes:
{shapes}
  rates are requests/s; durations take ms, s or m

objectives of --slo, with commas between them: METRIC[.PRIORITY][@SEGMENT] OP VALUE
  mean, max, p50 .. p99.9          response time of served requests, from the intended start: p99<500ms
  service., first_byte., rejection. prefix of these: from the write; to the first byte; of rejections
  error, limited, shed, dropped, done, goodput
                                   shares of the requests: error<0.5%, goodput.high>0.99
  goodput.rps, rps                 per second: rps@2>=100/s
  OP is < <= > or >=; SEGMENT is a name or number of the shape; values take us, ms, s, % or /s

examples:
  autoglm-throttle load http://127.0.0.1:8000/v1/predict --shape fixed:100:30s
  autoglm-throttle load http://127.0.0.1:8000 --shape step:100,1000,3000,5000:20s --route 'POST /v1/x=70' \\
      --route 'GET /v1/y=30' --slo 'p99<500ms,error<0.5%' --html report.html
  autoglm-throttle load http://127.0.0.1:8000/v1/predict --shape users:50:200:4:30s --watch 4711
  autoglm-throttle load http://127.0.0.1:8000/v1/predict --find-peak 100:5000 \\
      --slo 'p99<500ms,goodput>0.99'
  autoglm-throttle load compare before.json after.json

a line of --requests FILE:
  {{"method": "POST", "target": "/v1/x", "body": {{"tokens": 5}}, "share": 70, "cost": 4, "name": "short"}}

exit status:
  0    all objectives hold; without objectives, a request succeeded
  1    an objective failed; without objectives, no request succeeded or the service went down
  2    the run could not start, or a file could not be written
  3    the run is not valid: the generator or the machine was too slow
  130  stopped by Ctrl-C; the report is written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.usage = (
        "autoglm-throttle load URL --shape SHAPE [options]\n       autoglm-throttle load compare A B"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES.format(shapes="\n".join(f"  {line}" for line in SHAPES))
    parser.add_argument(
        "words", metavar="URL", nargs="+", help="URL of the service; or compare and the JSON of two reports"
    )
    load_arguments.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Send a load or search for a peak.

    Returns:
        The exit status, as listed at the end of the help.
    """
    return run_command("load", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    words: Sequence[str] = args.words
    if words[0] == "compare":  # after an option
        return compare_files(words[1:], args.format)
    if len(words) != 1:
        raise UsageError([f"URL: one service is loaded at a time, not {' '.join(words)}"])
    return load_run.run(load_arguments.read(args, words[0]))
