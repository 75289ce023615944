"""From what was asked for to what is sent."""

from __future__ import annotations

import gzip
import zlib
from array import array
from pathlib import Path
from typing import IO, Final, cast

from autoglm_throttle.cli.lab.load_asked import Asked
from autoglm_throttle.traffic.arrivals import Level, Plan, Shape, TraceShape, Users, plan, replay
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import Roster
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.record import open_recording
from autoglm_throttle.traffic.trace import HEADER, Trace, load_azure_llm, load_of

TRACED: Final = "/v1/predict"
"""Where a trace of token numbers goes if the URL names no path: the simulated service reads them there."""


def offered(asked: Asked) -> Load | Roster:
    """What is sent.

    Raises:
        TrafficError: the file of a trace cannot be read or played, or an objective names another segment.
    """
    what = _offered(asked)
    names = what.names if isinstance(what, Roster) else what.plan.names
    asked.judging.objectives.check(names)
    return what


def trial(asked: Asked, rate_rps: float, length_s: float) -> Load:
    """The load of one trial of a search."""
    made = plan(Shape([Level(rate_rps, length_s)]), asked.arrivals, asked.crowd, asked.seed)
    return Load(made, asked.drawn.requests)


def _offered(asked: Asked) -> Load | Roster:
    if isinstance(asked.shape, Users):
        return Roster(asked.shape, asked.drawn.requests, asked.crowd, asked.seed)
    if isinstance(asked.shape, TraceShape):
        return _traced(asked, Path(asked.shape.path))
    if asked.shape is None:
        raise TrafficError("a search makes its own loads")
    return Load(plan(asked.shape, asked.arrivals, asked.crowd, asked.seed), asked.drawn.requests)


def _traced(asked: Asked, path: Path) -> Load:
    """A trace of token numbers brings its requests along; of a recording only the times are taken."""
    if _first_line(path).replace(" ", "") == HEADER:
        trace = load_azure_llm(path)
        speed = _speed(asked, array("d", (item.t_s for item in trace.items)))
        return _tokens(asked, trace, speed)
    times_s = array("d", (entry.t_s for entry in open_recording(path).entries()))
    return Load(_replayed(asked, times_s), asked.drawn.requests)


def _tokens(asked: Asked, trace: Trace, speed: float) -> Load:
    target = TRACED if asked.path == "/" else asked.path
    return load_of(trace, asked.crowd, speed=speed, seed=asked.seed, target=target)


def _replayed(asked: Asked, times_s: array[float]) -> Plan:
    return replay(times_s, asked.crowd, speed=_speed(asked, times_s), seed=asked.seed)


def _speed(asked: Asked, times_s: array[float]) -> float:
    if asked.rate_rps is None or len(times_s) < 2 or times_s[-1] <= times_s[0]:
        return asked.speed
    return asked.rate_rps * (times_s[-1] - times_s[0]) / (len(times_s) - 1)


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as stored:
            opened = cast("IO[bytes]", gzip.GzipFile(fileobj=stored)) if path.suffix == ".gz" else stored
            return opened.readline(1000).decode("utf-8-sig", "replace").strip()
    except (OSError, EOFError, zlib.error) as error:
        raise TrafficError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
