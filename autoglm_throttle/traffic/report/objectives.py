"""Parses objectives such as ``p99<500ms`` and evaluates them on a report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Literal

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report.schema import Part
from autoglm_throttle.traffic.report.tally import percentile
from autoglm_throttle.types import Priority

Unit = Literal["s", "ratio", "rps"]
Measure = Callable[[Part], float | None]

# Metrics other than durations: unit, and the function that reads it from a tally.
METRICS: Mapping[str, tuple[Unit, Measure]] = {
    "error": ("ratio", lambda tally: tally["error_ratio"]),
    "limited": ("ratio", lambda tally: tally["limited_ratio"]),
    "shed": ("ratio", lambda tally: tally["shed_ratio"]),
    "dropped": ("ratio", lambda tally: tally["dropped_ratio"]),
    "done": ("ratio", lambda tally: tally["done_ratio"]),
    "goodput": ("ratio", lambda tally: tally["goodput"]["ratio"]),
    "goodput.rps": ("rps", lambda tally: tally["goodput"]["rps"]),
    "rps": ("rps", lambda tally: tally["rps"]),
}

UNITS: Mapping[Unit, Mapping[str, float]] = {  # Accepted suffixes of each unit, and their factors
    "s": {"us": 1e-6, "ms": 1e-3, "s": 1.0},
    "ratio": {"%": 0.01, "": 1.0},
    "rps": {"/s": 1.0, "": 1.0},
}

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt}

GRAMMAR = (
    "metric[.priority][@segment] op value; metrics: mean, max, p50 .. p99.9 (also service., first_byte.,"
    " rejection.), error, limited, shed, dropped, done, goodput, goodput.rps, rps; op: < <= > >=;"
    " units: us ms s % /s"
)

_TERM = re.compile(
    r"(?P<metric>[a-z0-9_.]+?)(?:\.(?P<priority>high|mid|low))?(?:@(?P<segment>[^<>=]+?))?"
    r"\s*(?P<op><=|>=|<|>)\s*(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<suffix>us|ms|s|%|/s|)"
)
_DURATION = re.compile(r"(service\.|first_byte\.|rejection\.|)(mean|max|p(\d{1,2}(?:\.\d{1,3})?))")


@dataclass(frozen=True, slots=True)
class ObjectiveTerm:
    """One objective."""

    text: str  # the objective as written, stripped
    unit: Unit
    measure: Measure  # reads the value from a tally
    operator: str
    bound: float  # in seconds, as a ratio, or per second
    priority: Priority | None = None
    # Name of a segment, or its number from 1; a repeated name selects all segments of that name.
    segment: str | None = None

    @classmethod
    def parse(cls, text: str) -> ObjectiveTerm:
        """Parse ``p99.high@peak<500ms``; raise TrafficError for a wrong syntax, metric or unit."""
        found = _TERM.fullmatch(text)
        if found is None:
            raise TrafficError(f"{text!r} is no objective: {GRAMMAR}")
        unit, measure = metric(found["metric"], text)
        scale = UNITS[unit].get(found["suffix"])
        if scale is None:
            known = ", ".join(name or "none" for name in UNITS[unit])
            raise TrafficError(f"the unit in {text!r} must be one of: {known}")
        bound = float(found["number"]) * scale
        if unit == "ratio" and bound > 1.0:
            raise TrafficError(f"the share in {text!r} is above 1, which is 100%")
        priority = Priority[found["priority"].upper()] if found["priority"] else None
        return cls(text, unit, measure, found["op"], bound, priority, found["segment"])

    def holds(self, value: float | None) -> bool:
        """Whether a value meets the objective; None never does."""
        return value is not None and OPERATORS[self.operator](value, self.bound)

    def evaluate(self, tally: Part | None) -> Part:
        """Evaluate the objective; None stands for a segment that the run did not have."""
        value = None if tally is None else self.measure(tally)
        return {"term": self.text, "value": value, "unit": self.unit, "holds": self.holds(value)}

    def applies_to(self, number: int, name: str) -> bool:
        """Whether the objective selects this segment, by name or by number from 0."""
        return self.segment in {name, str(number + 1)}


@dataclass(frozen=True, slots=True)
class Objectives:
    """All objectives of a run; an empty set is met by every run."""

    terms: tuple[ObjectiveTerm, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """Parse ``p99<500ms,error<0.5%,goodput.high>0.99``; invalid terms raise one TrafficError."""
        terms, faults = [], []
        for part in text.split(",") if text.strip() else ():
            try:
                terms.append(ObjectiveTerm.parse(part.strip()))
            except TrafficError as fault:
                faults.append(str(fault))
        if faults:
            raise TrafficError("; ".join(faults))
        return cls(tuple(terms))

    def check(self, segments: Sequence[str]) -> None:
        """Check before a run that every named segment will exist; else raise TrafficError."""
        missing = [
            term.text
            for term in self.terms
            if term.segment and not any(term.applies_to(number, name) for number, name in enumerate(segments))
        ]
        if missing:
            known = ", ".join(f"{number} ({name})" for number, name in enumerate(segments, 1))
            raise TrafficError(f"no such segment: {', '.join(missing)}; there are {known}")

    def evaluate(self, sums: Part) -> list[Part]:
        """Evaluate each objective on the tallies of a report; for a repeated segment, once for each."""
        results = []
        for term in self.terms:
            places = [{"tally": sums["totals"], "priorities": sums["priorities"]}]
            if term.segment is not None:
                numbered = enumerate(sums["segments"])
                places = [part for number, part in numbered if term.applies_to(number, part["name"])]
            tallies = [
                place["tally"] if term.priority is None else place["priorities"][term.priority.label]
                for place in places
            ]
            results += [term.evaluate(tally) for tally in tallies or (None,)]
        return results


def metric(name: str, text: str = "") -> tuple[Unit, Measure]:
    """Return the unit of a metric in the objective ``text``, and the function that reads it from a tally."""
    known = METRICS.get(name)
    if known is not None:
        return known
    found = _DURATION.fullmatch(name)
    share = float(Decimal(found[3] or 50) / 100) if found else 0.0
    if found is None or not share:
        raise TrafficError(f"unknown metric {name!r} in {text!r}: {GRAMMAR}")
    durations = found[1].rstrip(".") or "response"
    if found[2] in ("mean", "max"):
        return "s", lambda tally: tally[durations][f"{found[2]}_s"]
    return "s", lambda tally: percentile(tally[durations], share)
