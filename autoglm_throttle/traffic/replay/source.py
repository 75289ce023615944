"""Builds a load from a file: a recording, a file of GoReplay, or a trace of LLM requests."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path

from autoglm_throttle.settings.groups.callers import PRIORITY_HEADER
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import PriorityMix
from autoglm_throttle.traffic.plan import make_replay_plan as played
from autoglm_throttle.traffic.record import Redaction
from autoglm_throttle.traffic.replay.prepare import Fill, Replay, prepare
from autoglm_throttle.traffic.replay.selection import Selection
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.sources import open_source, read_begin
from autoglm_throttle.traffic.trace import HEADER, Trace, load_azure_llm, make_load


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Properties of the requests that a file does not contain."""

    bodies: Fill = field(default_factory=Fill)
    """Replacement for bodies that were not stored."""
    redaction: Redaction | None = None
    """Fields to read from a file of GoReplay; None: the default of a recorder."""
    priority_header: str = PRIORITY_HEADER
    decided: bool = False
    """Send the decided priority even if the recorded request stated none."""
    mix: PriorityMix = field(default_factory=PriorityMix)
    """Priorities and clients for a trace, which has neither."""
    seed: int = 0
    """Seed of their draws."""
    target: str = "/v1/predict"
    """Request path for a trace."""


def open_replay(
    path: Path, selection: Selection | None = None, options: ReplayOptions | None = None
) -> Replay:
    """Build the load of a file of any known format.

    Bodies of a file of GoReplay are sent whole; its fields pass the redaction of a recorder.

    Raises:
        TrafficError: the file cannot be read, has no times, or nothing of it is left to replay.
    """
    selection, options = selection or Selection(), options or ReplayOptions()
    if is_trace(path):
        trace = load_azure_llm(path)
        notes = (f"{trace.malformed} malformed lines were left out",) if trace.malformed else ()
        return Replay(of_trace(trace, selection, options), None, notes)
    source = open_source(path, redaction=options.redaction)
    entries = sorted(source.entries(), key=lambda entry: entry.t_s) if source.has_bodies else source.entries()
    made = prepare(
        entries, selection, options.bodies, priority_header=options.priority_header, decided=options.decided
    )
    return replace(made, notes=(*source.problem_lines(), *made.notes))


def of_trace(trace: Trace, selection: Selection, options: ReplayOptions) -> RequestSource:
    """Build the load of a part of a trace, with priorities and clients drawn again in each loop.

    Raises:
        TrafficError: nothing is left to replay, or the selection does not fit the trace.
    """
    items = [item for number, item in enumerate(trace.items) if selection.includes(item.t_s, "", number)]
    offsets = selection.offsets([item.t_s for item in items])
    once = make_load(Trace(tuple(items), 0), options.mix, target=options.target)
    kinds = (once.plan.kinds * -(-len(offsets) // len(items)))[: len(offsets)]
    return RequestSource(replace(played(offsets, options.mix, seed=options.seed), kinds=kinds), once.requests)


def times_of(path: Path) -> array[float]:
    """Return the arrival times of a file for ``trace:PATH``, in seconds from the first.

    Raises:
        TrafficError: the file cannot be read, or has no times.
    """
    if is_trace(path):
        return array("d", (item.t_s for item in load_azure_llm(path).items))
    times_s = sorted(entry.t_s for entry in open_source(path).entries())
    if not times_s:
        raise TrafficError(f"{path}: no request in it")
    return array("d", (t_s - times_s[0] for t_s in times_s))


def is_trace(path: Path) -> bool:
    """Return whether a file begins with the header line of a trace of LLM requests.

    Raises:
        TrafficError: it cannot be read.
    """
    line = read_begin(path).removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0]
    return line.strip().replace(b" ", b"") == HEADER.encode()
