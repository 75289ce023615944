"""``python -m examples.demo``: starts the service, sends the load, shows and checks the result."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.settings import Settings
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import parse_duration
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Policy, Priority
from examples.demo import report_page, scenario, screen, summary
from examples.demo.process import DemoProcess
from examples.demo.scenario import Scenario
from examples.demo.store import DemoStore

SERVER = "examples.demo.service"
INITIAL_CONNECTIONS = 100
"""Connections before the start: no more than the shortest backlog of a listening socket (macOS: 128)."""

OPTIONS = ClientOptions(
    connections=INITIAL_CONNECTIONS,
    more_connections=max(0, scenario.CONNECTIONS - INITIAL_CONNECTIONS),
    timeout_s=120.0,
    drain_s=60.0,
)
"""Long timeouts: under policy ``fixed`` answers may take half a minute, which the demonstration shows."""

USAGE, INTERRUPTED = 2, 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        "autoglm-throttle demo", description="Run a simulated service under load.", allow_abbrev=False
    )
    made.add_argument(
        "--seconds",
        type=_seconds,
        help=f"length of the load (default: {scenario.SECONDS:g}, or the whole trace)",
    )
    made.add_argument(
        "--policy", choices=[policy.value for policy in Policy], default=Settings().control.policy.value
    )
    made.add_argument(
        "--engine",
        choices=["batch", "llm"],
        default="batch",
        help="the service: a GPU that works in batches, or an LLM server that streams (default: batch)",
    )
    made.add_argument(
        "--trace",
        type=Path,
        metavar="PATH",
        help="drive it with this CSV of TIMESTAMP,ContextTokens,GeneratedTokens instead of the phases",
    )
    made.add_argument(
        "--speed",
        type=_above_zero,
        default=scenario.SPEED,
        help="how many times faster to play a trace (default: 20)",
    )
    made.add_argument(
        "--report",
        type=Path,
        default=report_page.PATH,
        metavar="PATH",
        help=f"where to write the report page (default: {report_page.PATH})",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration."""
    args = parser().parse_args(argv)
    try:
        check_server()
        check_writable(args.report)
        phases = scenario.llm_phases if args.engine == "llm" else scenario.phases
        load = phases(args.seconds or scenario.SECONDS)
        if args.trace is not None:
            load = scenario.traced(args.trace, args.speed, args.seconds)
        with DemoStore() as store:
            return demonstrate(load, Policy(args.policy), store, args.report)
    except TrafficError as problem:
        sys.stderr.write(f"autoglm-throttle demo: {problem}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def check_server() -> None:
    """Check for uvicorn before the start, since the service process would fail without it."""
    if find_spec("uvicorn") is None:
        raise TrafficError(f"this needs uvicorn: {how_to_install('traffic')}")


def check_writable(path: Path) -> None:
    """Check before the run that the report can be written."""
    place = path if path.exists() else path.parent
    if path.is_dir() or not os.access(place, os.W_OK):
        raise TrafficError(f"{path} cannot be written: name another file with --report")


def demonstrate(load: Scenario, policy: Policy, store: DemoStore, report: Path) -> int:
    """Run a scenario, print its table and sentences, and write its report page; return the exit status."""
    out = sys.stdout
    settings = scenario.environment(policy, store.url, load.length_s, load.speed, llm=load.llm)
    shown = (f"  {name}={value}\n" for name, value in settings.items() if not name.endswith("_SECRET"))
    out.write(f"{load.title}\n{''.join(shown)}  {store.sentence()}\n")
    out.flush()
    config = {"environment": settings, "speed": load.speed, "length_s": load.length_s, "llm": load.llm}
    with DemoProcess(SERVER, config) as child:
        out.write(f"  live page: {page_url(child.port)}\n")
        out.flush()
        result, observer = asyncio.run(_drive(load, child, out))
        problems = summary.problems(result, observer, phased=load.speed is None)
        stderr = child.stderr_tail() if problems else []
    sentences = summary.sentences(result, observer, store.name)
    lines = ["", *screen.table(result), "", *summary.REASON_MEANINGS, ""]
    for sentence in sentences[1:]:
        lines += [sentence, ""]
    if result.balanced:
        page = report_page.page(load, policy, result, sentences, problems)
        lines += [write_page(report, page), ""]
    out.write("\n".join([*lines, sentences[0]]) + "\n")
    out.writelines(f"PROBLEM: {problem}\n" for problem in [*problems, *stderr])
    if result.aborted and not observer.has_exited:
        return INTERRUPTED
    return 1 if problems else 0


def page_url(port: int) -> str:
    """Return the URL of the live page, served while the demonstration runs."""
    return f"http://127.0.0.1:{port}{scenario.PAGE_PATH}/"


def write_page(path: Path, page: str) -> str:
    """Write the report page and return a sentence with its path."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as problem:
        return f"The report page could not be written: {problem}"
    return f"Report page: {path}"


async def _drive(load: Scenario, child: DemoProcess, out: TextIO) -> tuple[Result, summary.DemoObserver]:
    await child.request(scenario.STATE_PATH)
    target = TargetUrl(port=child.port, identity_header=scenario.IDENTITY_HEADER)
    recent = screen.RecentCounts(load.plan.priorities)
    generator = OpenLoopSender(load.load, target, OPTIONS, recent.record)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, generator.stop)
    observer = summary.DemoObserver()
    running = loop.create_task(generator.run())
    view = screen.DemoView(out)
    state: dict[str, Any] | None = None
    samples: list[dict[str, float]] = []
    while not running.done():
        await asyncio.wait((running,), timeout=screen.TURN_S)
        if not (child.running or observer.has_exited):
            observer.has_exited = True
            # The first stop ends the sending, the second one the wait for answers.
            generator.stop()
            generator.stop()
        new_state = await child.request(scenario.STATE_PATH)
        if new_state is not None and generator.elapsed_s >= 0.0:
            samples.append(report_page.page_sample(new_state, generator.elapsed_s))
        state = new_state or state
        if state is not None:
            observer.observe(state)
            view.show(_frame(load, generator, recent, state))
        recent.turn(generator.launched)
    return replace(await running, watched=tuple(samples)), observer


def _frame(
    load: Scenario, generator: OpenLoopSender, recent: screen.RecentCounts, state: dict[str, Any]
) -> screen.ScreenFrame:
    plan, span_s = load.plan, screen.TURN_S * recent.turns
    return screen.ScreenFrame(
        elapsed_s=max(0.0, generator.elapsed_s),
        length_s=load.length_s,
        phase=plan.names[plan.segments[max(0, generator.launched - 1)]],
        offered_rps=recent.offered(generator.launched) / span_s,
        open=generator.in_flight,
        state=state,
        recent={priority: recent.of(priority) for priority in Priority},
        span_s=span_s,
    )


def _seconds(text: str) -> float:
    try:
        length_s = parse_duration(text)
    except TrafficError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if not 1.0 <= length_s <= 3600.0:
        raise argparse.ArgumentTypeError("must be 1..3600 seconds")
    return length_s


def _above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError("must be a finite number above 0")
    return number
