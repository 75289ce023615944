"""Events of the table for features with a fallback: every call returns the result of its caller."""

from __future__ import annotations

import asyncio
from typing import Any

from autoglm_throttle.resilience.fallback import Fallback
from autoglm_throttle.resilience.guard import Guard
from autoglm_throttle.settings.groups.breaker import BreakerSettings
from autoglm_throttle.types import Criticality, DegradationLevel, FallbackContext, GuardRejected
from tests.resilience.conformance.calls import classifier, error
from tests.resilience.conformance.events import EventHandlers, EventRunner, rejection
from tests.resilience.degrading import LOADS, Bench, Dependency


class Worse(Exception):
    """Exception of a fallback."""


def computed(context: FallbackContext) -> str:
    return f"dynamic({context.cause})"


def raising(context: FallbackContext) -> str:
    raise Worse


def fallback(reports: dict[str, str]) -> Fallback | None:
    """The rungs that a row names."""
    fallback_kinds = reports.get("fallback", "").split("+")
    given: dict[str, Any] = {
        "static": {"static": "static"},
        "dynamic": {"dynamic": computed},
        "raises": {"dynamic": raising},
        "cheap": {"dynamic": computed, "under_load": True},
        "stale": {"stale": True},
        "on_value": {"on_value": True},
        "": {},
    }
    chosen = {name: value for fallback_kind in fallback_kinds for name, value in given[fallback_kind].items()}
    return Fallback(**chosen) if chosen else None


class Fallbacks(EventRunner):
    """One feature of a service, and one way of calling it."""

    def __init__(self, rules: BreakerSettings, reports: dict[str, str], face: str) -> None:
        super().__init__()
        self.bench = Bench(
            fallback(reports),
            Criticality(reports.get("criticality", "core")),
            rules=rules,
            classifier=classifier(reports),
        )
        self.bench.circuit.attach(self.bench.served)
        self.dependency = Dependency(face)

    def handlers(self) -> EventHandlers:
        return {
            r"returns": lambda: self.call(None, "live"),
            r"returns nothing": lambda: self.call(None, []),
            r"raises (\S+)": lambda names: self.call(error(names), None),
            r"block": self.block,
            r"load (\w+)": lambda level: self.load(DegradationLevel[level.upper()]),
            r"state": lambda: str(self.bench.circuit.state()),
            r"calls": lambda: f"calls {self.dependency.calls}",
            r"degraded": self.degraded,
        }

    def wait(self, span_s: str) -> None:
        self.bench.now += float(span_s)

    def load(self, level: DegradationLevel) -> None:
        self.bench.load = LOADS[level]
        for _ in range(3):
            self.bench.now += 1.0
            self.bench.degradation.level()

    def block(self) -> str:
        try:
            with Guard(self.bench.circuit):
                return "let through"
        except GuardRejected as rejected:
            return rejection(rejected.rejection)

    def call(self, raised: BaseException | None, value: object) -> str:
        self.dependency.error, self.dependency.value = raised, lambda: value
        try:
            got = self.dependency(self.bench.served, "a question")
        except GuardRejected as rejected:
            return rejection(rejected.rejection)
        except (asyncio.CancelledError, KeyboardInterrupt) as gone:
            return type(gone).__name__
        except Exception as caught:  # noqa: BLE001 - it is the answer
            worse = any("Worse" in note for note in getattr(caught, "__notes__", ()))
            return type(caught).__name__ + (" noting Worse" if worse else "")
        return str(got)

    def degraded(self) -> str:
        counts = [
            f"{fallback_kind}({cause})={count}"
            for (fallback_kind, cause), count in self.bench.counted().items()
        ]
        return " ".join(["degraded", *(sorted(counts) or ["nothing"])])
