"""The command ``autoglm-throttle demo``: starts the service, sends the load, shows and checks the result."""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from autoglm_throttle._runtime.install_hint import how_to_install
from autoglm_throttle.settings import Settings
from autoglm_throttle.traffic.demo import final_page, screen, summary
from autoglm_throttle.traffic.demo.counts import RecentCounts
from autoglm_throttle.traffic.demo.demo_process import DemoProcess
from autoglm_throttle.traffic.demo.scenario import (
    CONNECTIONS,
    IDENTITY_HEADER,
    SECONDS,
    STATE_PATH,
    Scenario,
    environment,
    phases,
    traced,
)
from autoglm_throttle.traffic.demo.store import DemoStore
from autoglm_throttle.traffic.demo.view import TURN_S, DemoView, build_frame
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl
from autoglm_throttle.traffic.plan import parse_duration
from autoglm_throttle.traffic.result import Result
from autoglm_throttle.types import Policy

SERVER = "autoglm_throttle.traffic.demo.server"
INITIAL_CONNECTIONS = 100
"""Connections before the start: no more than the shortest backlog of a listening socket (macOS: 128)."""

OPTIONS = ClientOptions(
    connections=INITIAL_CONNECTIONS,
    more_connections=max(0, CONNECTIONS - INITIAL_CONNECTIONS),
    timeout_s=120.0,
    drain_s=60.0,
)
"""Long timeouts: under policy ``fixed`` answers may take half a minute, which the demonstration shows."""

USAGE, INTERRUPTED = 2, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the demonstration to a parser."""
    parser.add_argument(
        "--seconds", type=_seconds, help=f"length of the load (default: {SECONDS:g}, or the whole trace)"
    )
    parser.add_argument(
        "--policy", choices=[policy.value for policy in Policy], default=Settings().control.policy.value
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="PATH",
        help="drive it with this CSV of TIMESTAMP,ContextTokens,GeneratedTokens instead of the phases",
    )
    parser.add_argument(
        "--speed", type=_above_zero, default=20.0, help="how many times faster to play a trace (default: 20)"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=final_page.PATH,
        metavar="PATH",
        help=f"where to write the report page (default: {final_page.PATH})",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demonstration.

    Returns:
        0 if every request is accounted for, none failed and the overload was rejected; 1 if not;
        2 if it cannot begin; 130 after Ctrl-C.
    """
    try:
        _check_server()
        final_page.check(args.report)
        with DemoStore() as store:
            return _DemoRun(_scenario(args), Policy(args.policy), store, args.report).run(sys.stdout)
    except TrafficError as problem:
        sys.stderr.write(f"autoglm-throttle demo: {problem}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def _check_server() -> None:
    """Check for uvicorn before the start, since the service process would fail without it.

    Raises:
        TrafficError: uvicorn is not installed.
    """
    if find_spec("uvicorn") is None:
        raise TrafficError(f"this needs uvicorn: {how_to_install('traffic')}")


@dataclass(frozen=True, slots=True)
class _DemoRun:
    scenario: Scenario
    policy: Policy
    store: DemoStore
    report: Path

    def run(self, out: TextIO) -> int:
        scenario, store = self.scenario, self.store
        settings = environment(self.policy, store.url, scenario.length_s)
        shown = (f"  {name}={value}\n" for name, value in settings.items() if not name.endswith("_SECRET"))
        out.write(f"{scenario.title}\n{''.join(shown)}  {store.sentence()}\n")
        out.flush()
        with DemoProcess(SERVER, _server_config(scenario, settings)) as child:
            result, observer = asyncio.run(_drive(scenario, child, out))
            problems = summary.problems(result, observer, phased=scenario.speed is None)
            stderr = child.stderr_tail() if problems else []
        sentences = self._sentences(result, observer)
        lines = ["", *screen.table(result.summary), "", *summary.REASON_MEANINGS, ""]
        for sentence in sentences[1:]:
            lines += [sentence, ""]
        if result.balanced:
            page = final_page.page(scenario, self.policy, result, sentences, problems)
            lines += [self.write_page(page), ""]
        lines.append(sentences[0])
        out.write("\n".join(lines) + "\n")
        out.writelines(f"PROBLEM: {problem}\n" for problem in [*problems, *stderr])
        if result.aborted and not observer.has_exited:
            return INTERRUPTED
        return 1 if problems else 0

    def _sentences(self, result: Result, observer: summary.DemoObserver) -> list[str]:
        """Return the sentences on the run, the store and the downstream."""
        sentences = [summary.sentence(result, observer)]
        if observer.store is not None:
            sentences.append(summary.store_sentence(self.store.name, observer.store))
        if observer.downstream is not None:
            sentences.append(summary.downstream_sentence(observer.downstream))
        return sentences

    def write_page(self, page: str) -> str:
        """Write the report page and return a sentence with its path."""
        try:
            self.report.write_text(page, encoding="utf-8")
        except OSError as problem:
            return f"The report page could not be written: {problem}"
        return f"Report page: {self.report}"


def _server_config(scenario: Scenario, settings: dict[str, str]) -> dict[str, Any]:
    """Return the configuration of the service."""
    return {"environment": settings, "speed": scenario.speed, "length_s": scenario.length_s}


def _scenario(args: argparse.Namespace) -> Scenario:
    if args.trace is not None:
        return traced(args.trace, args.speed, args.seconds)
    return phases(SECONDS if args.seconds is None else args.seconds)


async def _drive(scenario: Scenario, child: DemoProcess, out: TextIO) -> tuple[Result, summary.DemoObserver]:
    await child.request(STATE_PATH)
    target = TargetUrl(port=child.port, identity_header=IDENTITY_HEADER)
    recent = RecentCounts(scenario.plan.priorities)
    generator = OpenLoopSender(scenario.load, target, OPTIONS, recent.record)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, generator.stop)
    observer = summary.DemoObserver()
    running = loop.create_task(generator.run())
    view = DemoView(out)
    state: dict[str, Any] | None = None
    samples: list[dict[str, float]] = []
    while not running.done():
        await asyncio.wait((running,), timeout=TURN_S)
        if not (child.running or observer.has_exited):
            observer.has_exited = True
            # The first stop ends the sending, the second one the wait for answers.
            generator.stop()
            generator.stop()
        new_state = await child.request(STATE_PATH)
        if new_state is not None and generator.elapsed_s >= 0.0:
            samples.append(final_page.page_sample(new_state, generator.elapsed_s))
        state = new_state or state
        if state is not None:
            observer.observe(state)
            view.show(build_frame(scenario, generator, recent, state))
        recent.turn(generator.launched)
    return replace(await running, watched=tuple(samples)), observer


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
