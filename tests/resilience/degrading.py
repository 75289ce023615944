"""A feature of the degradation tests with a manual clock, a manual load and counted answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from autoglm_throttle.resilience.classify import OutcomeClassifier
from autoglm_throttle.resilience.degradation import DegradationController
from autoglm_throttle.resilience.fallback import Fallback, Feature
from autoglm_throttle.resilience.feature_executor import FeatureExecutor
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.settings.groups.breaker import BreakerSettings, DegradationSettings
from autoglm_throttle.types import Criticality, DegradationLevel, FallbackContext, FallbackKind
from tests.loops import run

LOADS = {
    DegradationLevel.FULL: 0.1,
    DegradationLevel.SHED: 0.85,
    DegradationLevel.STALE: 0.92,
    DegradationLevel.STATIC: 0.99,
}


class Bench:
    """One feature with all its parts, at a level set by the test.

    Args:
        fallback: of the feature.
        criticality: of the feature.
        shed_above: of the feature.
        rules: of its breaker.
        judge: of its guard.
        timeout_s: of its fallback.
    """

    def __init__(
        self,
        fallback: Fallback | None,
        criticality: Criticality = Criticality.CORE,
        *,
        shed_above: float | None = None,
        rules: BreakerSettings | None = None,
        classifier: OutcomeClassifier | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.now = 100.0
        self.load: float | None = LOADS[DegradationLevel.FULL]
        self.counts: Counter[tuple[str, FallbackKind, str]] = Counter()
        self.feature = Feature("related", criticality, fallback, shed_above)
        self.circuit = GuardState(
            "related", rules or BreakerSettings(failures=2), clock=self.clock, classifier=classifier
        )
        settings = DegradationSettings(cache_entries=8, fallback_timeout_s=timeout_s or 3600.0)
        self.degradation = DegradationController(
            settings, lambda: self.load, 1.0, self.clock, lambda *_: None
        )
        self.served = FeatureExecutor(
            self.circuit, self.feature, self.degradation, self.count, settings, max_stale_s=60.0
        )

    def clock(self) -> float:
        """Return the manual time in seconds."""
        return self.now

    def count(self, *answer: Any) -> None:
        """Count one degraded answer."""
        self.counts[answer] += 1

    def counted(self) -> dict[tuple[str, str], int]:
        """Return the number of answers by kind of fallback and cause."""
        return {
            (fallback_kind.value, cause): count for (_, fallback_kind, cause), count in self.counts.items()
        }

    def at(self, level: DegradationLevel) -> Bench:
        """Have the load of a level for three samples."""
        self.load = LOADS[level]
        for _ in range(3):
            self.now += 1.0
            self.degradation.level()
        assert self.degradation.level() is level
        return self

    def open(self) -> Bench:
        """Have the breaker open."""
        self.circuit.open_for(1000.0)
        return self


def fallback_kinds(
    fallback: Fallback | None, counted: Callable[..., None], timeout_s: float | None = None
) -> FeatureExecutor:
    """The executor of a feature with a fallback."""
    settings = DegradationSettings(fallback_timeout_s=timeout_s or 3600.0)
    degradation = DegradationController(settings, lambda: None, 1.0, lambda: 0.0, lambda *_: None)
    circuit = GuardState("related", BreakerSettings(), clock=lambda: 0.0)
    return FeatureExecutor(circuit, Feature("related", fallback=fallback), degradation, counted, settings)


def context(error: BaseException | None = None, cause: str = "error") -> FallbackContext:
    """Why there is no answer."""
    return FallbackContext("related", cause, error, (1,), {"two": 2})


FACES = ("sync", "asyncio", "trio")


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    """Each way in which a function is called."""
    return str(request.param)


class Failed(Exception):
    """Exception of a guarded function."""


class Dependency:
    """A guarded function that returns a new number, or a result set by the test."""

    def __init__(self, face: str) -> None:
        self.face = face
        self.calls = 0
        self.error: BaseException | None = None
        self.value: Callable[[], Any] | None = None

    def plain(self, *args: Any, **kwargs: Any) -> Any:
        """The function."""
        self.calls += 1
        if self.error is not None:
            raise self.error
        return [self.calls] if self.value is None else self.value()

    async def later(self, *args: Any, **kwargs: Any) -> Any:
        """The coroutine function."""
        await checkpoint()
        return self.plain(*args, **kwargs)

    def __call__(self, served: FeatureExecutor, *args: Any, **kwargs: Any) -> Any:
        """Make one call through the feature."""
        if self.face == "sync":
            return served.call(self.plain, args, kwargs)
        values: list[Any] = []

        async def task() -> None:
            values.append(await served.call_async(self.later, args, kwargs))

        run(self.face, task)
        return values[0]
