"""Each literal figure, asserted under the policy `tiers`, and the page that lists them.

Where the default policy differs, its tests stand beside those of the figure.
"""

from __future__ import annotations

import math
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.admission.permit import Permit, Rejection
from autoglm_throttle.limiting.concurrency_limiter import Ticket
from autoglm_throttle.settings import Settings
from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.throttle import Throttle
from autoglm_throttle.traffic.plan import LoadShape, Users, parse_shape
from autoglm_throttle.traffic.report import Objectives
from autoglm_throttle.types import (
    BreakerState,
    ControlCause,
    ControlState,
    Criticality,
    Demand,
    GuardPermit,
    GuardRejection,
    Outcome,
    Policy,
    Priority,
    Reason,
)
from benchmarks import headline
from benchmarks.headline_rows import cases
from tests.founding_figures import FIGURES, page

PAGE = Path(__file__).parents[2] / "docs" / "founding-figures.md"


class Service:
    """A throttle as it comes, but for the policy, with a clock and a GPU that obey."""

    def __init__(self, policy: Policy = Policy.TIERS, **settings: Any) -> None:
        self.clock = ManualClock()
        self.gpu = FakeGpu(clock=self.clock)
        chosen = Settings(policy=policy, **settings)
        self.throttle = Throttle(chosen, gpu=self.gpu, sampling="manual", clock=self.clock)

    def sample(self, *percents: float) -> list[float]:
        """Read the GPU once a second; the factor after each sample."""
        return [self.regime_at(percent).factor for percent in percents]

    def regime_at(self, percent: float) -> ControlState:
        self.clock.advance(1.0)
        self.gpu.utilization_pct = percent
        return self.throttle.tick()

    def admitted(self, priority: Priority, tries: int) -> int:
        """How many of so many requests come in at this instant."""
        verdicts = [self.throttle.try_admit(Demand(priority)) for _ in range(tries)]
        return sum(isinstance(verdict, Permit) for verdict in verdicts)

    def drain(self) -> None:
        for priority in Priority:
            self.admitted(priority, 1100)

    def refilled(self, seconds: float) -> tuple[int, ...]:
        """How many requests of each priority come in after so many seconds, the buckets having been empty."""
        self.drain()
        self.clock.advance(seconds)
        return tuple(self.admitted(priority, 1100) for priority in Priority)


def test_token_buckets() -> None:
    assert Settings().rates.rates_rps == (1000.0, 500.0, 100.0)
    service = Service()
    assert tuple(service.admitted(priority, 1500) for priority in Priority) == (1000, 500, 100)
    assert service.refilled(1.0) == (1000, 500, 100)
    assert service.refilled(0.1) == (100, 50, 10)
    assert service.refilled(60.0) == (1000, 500, 100), "no more than one second is saved up"


def test_priorities() -> None:
    assert [Priority.parse(stated) for stated in ("1", "2", "3", "0", "17", "x", "")] == [
        Priority.HIGH,
        Priority.MID,
        *[Priority.LOW] * 5,
    ]
    assert Settings().callers.priority_default is Priority.MID


def test_sampling() -> None:
    assert Settings().gpu.sample_interval_s == 1.0


def test_trigger() -> None:
    above = math.nextafter(85.0, 100.0)
    assert (Settings().control.tier_samples, Settings().control.tiers[0][0]) == (3, 85.0)
    assert Service().sample(above, above, above) == [1.0, 1.0, 0.7]
    assert Service().sample(85.0, 85.0, 85.0, 85.0) == [1.0] * 4
    assert Service().sample(above, above, 85.0, above, above, above) == [1.0] * 5 + [0.7]


@pytest.mark.parametrize(
    ("percent", "factor", "refilled"),
    [
        (85.0, 1.0, (1000, 500, 100)),
        (85.1, 0.7, (700, 350, 70)),
        (90.0, 0.7, (700, 350, 70)),
        (90.1, 0.4, (400, 200, 40)),
        (95.0, 0.4, (400, 200, 40)),
        (95.1, 0.0, (0, 0, 0)),
        (100.0, 0.0, (0, 0, 0)),
    ],
)
def test_tiers(percent: float, factor: float, refilled: tuple[int, ...]) -> None:
    assert Settings().control.tiers == ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0))
    service = Service()
    assert service.sample(percent, percent, percent)[-1] == factor
    assert service.refilled(1.0) == refilled


def test_above_95_percent_full_buckets_do_not_help() -> None:
    service = Service()
    service.sample(96.0, 96.0, 96.0)
    assert service.throttle.snapshot().tokens[Priority.HIGH] == 1000.0
    verdict = service.throttle.try_admit(Demand(Priority.HIGH))
    assert isinstance(verdict, Rejection)
    assert (verdict.decision.reason, verdict.decision.detail) == (Reason.GPU, "gpu:overload")
    assert verdict.decision.retry_after_s == 1.0, "the next sample could open the door"


def test_release() -> None:
    control = Settings().control
    assert (control.tier_samples, control.tier_release_samples) == (3, 1)
    assert (control.tier_release_margin_pct, control.tier_recovery_step) == (0.0, 1.0)
    service = Service()
    assert service.sample(96.0, 96.0, 96.0, 92.0, 88.0, 85.0) == [1.0, 1.0, 0.0, 0.4, 0.7, 1.0]
    assert service.sample(96.0, 96.0, 96.0, 20.0) == [1.0, 1.0, 0.0, 1.0]
    assert service.throttle.control_state().cause is ControlCause.RELEASED


class Crowd(Service):
    """The default policy before a service that finishes 20 requests/s, with one inside and one in line."""

    def __init__(self) -> None:
        super().__init__(Settings().control.policy, inflight_max=1, slo_s=60.0)
        for _ in range(40):
            self.inside = self.permit()
            self.clock.advance(0.05)
            self.inside.settle()
        self.inside = self.permit()
        ticket = self.throttle.try_admit(Demand(Priority.HIGH))
        assert isinstance(ticket, Ticket)
        self.ticket = ticket

    def permit(self) -> Permit:
        permit = self.throttle.try_admit(Demand(Priority.HIGH))
        assert isinstance(permit, Permit)
        return permit


def test_the_default_policy_cuts_only_while_requests_wait() -> None:
    assert Settings().control.policy is Policy.ADAPTIVE
    calm = Service(Settings().control.policy)
    assert calm.sample(*[99.0] * 10) == [1.0] * 10
    assert calm.throttle.control_state().table_factor == 0.0, "what it would be under tiers is told"
    assert Crowd().sample(85.0, 92.0, 92.0, 92.0) == [1.0, 1.0, 1.0, 0.4]
    assert Crowd().sample(92.0, 92.0, 88.0) == [1.0, 1.0, 0.7]


def test_the_default_policy_never_cuts_below_what_the_service_finishes() -> None:
    crowd = Crowd()
    factor = crowd.sample(99.0, 99.0, 99.0)[-1]
    seen = crowd.throttle.snapshot()
    assert seen.concurrency is not None
    assert seen.concurrency.service_rps == pytest.approx(20.0, rel=0.3)
    least_rps = 1.15 * (seen.concurrency.service_rps or 0.0)
    assert factor * sum(Settings().rates.rates_rps) == pytest.approx(least_rps)
    assert seen.rate_limit_rps == {priority: pytest.approx(least_rps) for priority in Priority}


def test_the_default_policy_ends_a_cut_after_two_samples_in_which_nobody_waits() -> None:
    crowd = Crowd()
    assert crowd.sample(92.0, 92.0, 92.0) == [1.0, 1.0, 0.4]
    crowd.throttle.leave(crowd.ticket)
    assert crowd.sample(92.0, 92.0) == [0.4, 1.0]
    assert crowd.throttle.control_state().cause is ControlCause.RELEASED


def test_user_window() -> None:
    assert Settings().users.by_priority == ((), (), ())
    service = Service(user_limit="10/second")
    ann = Demand(user="ann")
    assert [type(service.throttle.try_admit(ann)) for _ in range(50)] == [Permit] * 10 + [Rejection] * 40
    service.clock.advance(0.999)
    assert isinstance(service.throttle.try_admit(ann), Rejection)
    service.clock.advance(0.001)
    assert isinstance(service.throttle.try_admit(ann), Permit)


def test_breaker() -> None:
    settings = Settings()
    figures = (settings.breaker.failures, settings.breaker.open_s, settings.breaker.half_open_max)
    assert figures == (5, 10.0, 1)
    service = Service()
    guard = service.throttle.guard("vector-db")

    def call(outcome: Outcome) -> BreakerState:
        allowed = guard.allow()
        assert isinstance(allowed, GuardPermit)
        guard.settle(allowed, outcome)
        return guard.state()

    assert [call(Outcome.FAILURE) for _ in range(4)] == [BreakerState.CLOSED] * 4
    assert call(Outcome.SUCCESS) is BreakerState.CLOSED
    assert [call(Outcome.FAILURE) for _ in range(5)] == [BreakerState.CLOSED] * 4 + [BreakerState.OPEN]
    for failing in (True, False):
        service.clock.advance(9.999)
        assert isinstance(guard.allow(), GuardRejection)
        service.clock.advance(0.001)
        trial = guard.allow()
        assert isinstance(trial, GuardPermit)
        assert isinstance(guard.allow(), GuardRejection), "one trial at a time"
        guard.settle(trial, Outcome.FAILURE if failing else Outcome.SUCCESS)
        assert guard.state() is (BreakerState.OPEN if failing else BreakerState.CLOSED)


def test_degradation() -> None:
    settings = Settings()
    assert (settings.degradation.shed_at, settings.degradation.samples) == (0.80, 3)
    service = Service()
    service.throttle.feature("related", criticality=Criticality.NON_CORE)
    offered = []
    for percent in (80.0, 80.0, 80.0, 80.1, 80.1, 80.1):
        service.sample(percent)
        offered.append(service.throttle.guard("related").is_available())
    assert offered == [True] * 5 + [False]
    assert service.throttle.guard("vector-db").is_available(), "what is core is not shed"


def test_users() -> None:
    assert parse_shape("users:50:60s") == Users(((50, 60.0),), think_s=0.1)
    steps = parse_shape("users:50:2000:8:30s")
    assert isinstance(steps, Users)
    assert (steps.steps[0], steps.steps[-1], len(steps.steps)) == ((50, 30.0), (2000, 30.0), 8)
    spike = parse_shape("spike:50:500:60s:30s")
    assert isinstance(spike, LoadShape)
    assert [level.rate_rps for level in spike.levels] == [50.0, 500.0, 50.0]


def test_objectives() -> None:
    asked = Objectives.parse("p99<500ms,error<0.5%,rps>=10000/s")
    assert [(term.unit, term.operator, term.bound) for term in asked.terms] == [
        ("s", "<", 0.5),
        ("ratio", "<", 0.005),
        ("rps", ">=", 10_000.0),
    ]


def test_gradient() -> None:
    published = [(level, *astuple(figures)) for level, figures in cases.PUBLISHED.items()]
    assert published == [("100/s", 42, 0.0, 0), ("3000/s", 118, 0.003, 12), ("5000/s", 205, 0.047, 89)]
    assert {100.0, 3000.0, 5000.0} <= set(cases.LEVELS) <= set(cases.FULL.rates_rps)
    assert (cases.PATH, headline.LONG_S) == ("/v1/generate", 600.0)


def test_every_row_has_its_test() -> None:
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    missing = [figure.name for figure in FIGURES if f"test_{figure.name}" not in globals()]
    assert not missing


def test_the_page_is_made_from_the_table() -> None:
    told = "run: python -m tests.founding_figures > docs/founding-figures.md"
    assert PAGE.read_text(encoding="utf-8") == page(), told
