"""The composition root: the order of the limits, the refunds, the clock and the lock; no algorithm."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Sequence
from typing import Final, Literal

from autoglm_throttle import journal
from autoglm_throttle.control.choose import controller
from autoglm_throttle.control.controller import Controller, ControlRules, Hysteresis
from autoglm_throttle.control.staleness import Staleness
from autoglm_throttle.control.table import TierTable
from autoglm_throttle.gpu.aggregate import Aggregator
from autoglm_throttle.gpu.none import NoSource
from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.gpu.select import select
from autoglm_throttle.identity import Identity, is_identity
from autoglm_throttle.limiting.token_bucket import PriorityBuckets
from autoglm_throttle.limiting.user_windows import UserWindows
from autoglm_throttle.model import (
    Clock,
    Decision,
    Demand,
    Evidence,
    GpuProvider,
    GpuSample,
    Priority,
    ProviderMisconfigured,
    Reason,
    Regime,
    Why,
    Work,
)
from autoglm_throttle.permit import Permit, Rejection
from autoglm_throttle.settings import SETTINGS, Settings
from autoglm_throttle.snapshot import Rows, Snapshot, decision_name

SWEPT_PER_SAMPLE = 100
"""Users looked at for idleness with each GPU sample: tens of microseconds under the lock."""

ADMITTED: Final = Decision(True, Reason.OK)
"""The decision where no user limit applies: there is nothing to say about it."""


class Throttle:
    """Owns every limit of a service. Share one object between all that is to be limited together.

    Args:
        settings: what to enforce; None: the defaults. ``Throttle.from_env()`` reads the environment.
        gpu: where samples come from, instead of what ``settings.gpu`` names.
        sampling: ``thread`` reads the GPUs on a daemon thread from the first request or lifespan on;
            ``manual`` reads them only in `tick`, for tests and simulators.
        clock: monotonic seconds; the only clock that decisions see.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        gpu: GpuProvider | None = None,
        sampling: Literal["thread", "manual"] = "thread",
        clock: Clock = time.monotonic,
    ) -> None:
        settings = settings if settings is not None else Settings()
        self.settings: Settings = settings
        self._clock = clock
        self._rows = Rows(clock)
        self._manual = sampling == "manual"
        self._listening = False
        now = clock()
        rates = [rate / settings.workers for rate in settings.rates_rps]
        self._buckets = PriorityBuckets(rates, settings.burst_s, settings.borrow, now)
        self._windows = _user_windows(settings)
        self._controller = _controller(settings, now)
        self._aggregator = Aggregator(settings.gpu_aggregate)
        self._regime = self._controller.regime(now)
        self._open = self._regime.factor > 0.0
        self._renew_at_s = -math.inf
        """When a request must first do what is due; at once while nothing listens."""
        self._devices: tuple[GpuSample, ...] = ()
        self._sampled_wall_s: float | None = None
        secret = settings.key_secret
        self._identity = Identity(secret.get_secret_value().encode() if secret else None)
        self._configured = False
        self._full = False
        self._refusals = journal.RefusalSampler(settings.log_refused_every_s)
        self._lines: list[journal.Line] = []
        self._sampler = self._make_sampler(gpu)
        if self._sampler is None:
            self._adopt(self._controller.silent(now), now)
        _ALL.add(self)

    @classmethod
    def from_env(cls) -> Throttle:
        """A throttle as the environment configures it.

        Raises:
            ConfigError: with every fault of the environment and the configuration file.
        """
        return cls(Settings.from_env())

    def __repr__(self) -> str:
        regime = self._regime
        rates = "/".join(f"{bucket.rate:g}" for bucket in self._buckets.all)
        return (
            f"Throttle({self.settings.policy}, factor={regime.factor:.2f} ({regime.why}), "
            f"telemetry={regime.telemetry}, rates={rates}/s, "
            f"active={sum(row.active for row in self._rows.classes)})"
        )

    async def admit(self, demand: Demand) -> Permit | Rejection:
        """Ask for leave to run a request. Never raises, and never returns anything else."""
        return self.try_admit(demand)

    def try_admit(self, demand: Demand) -> Permit | Rejection:
        """The same without an event loop."""
        now = self._clock()
        if now >= self._renew_at_s:
            self._renew()
        rows = self._rows
        with rows.lock:
            paid = self._buckets.take(demand, now) if self._open else _door_shut(self._regime, now)
            if isinstance(paid, Decision):
                decision = paid
            else:
                decision = self._windows.hit(demand, now) or ADMITTED
                if decision.allowed:
                    rows.classes[demand.priority].admitted += 1
                    return Permit(rows, demand, decision, now)
                paid.give_back(demand.cost, now)
            self._note_refusal(demand, decision, now)
        if self._lines:
            self._write()
        return Rejection(demand, decision)

    def observe(self, samples: Sequence[GpuSample]) -> Regime:
        """Take in one reading of all devices: the sampler's entrance, and that of tests."""
        now = self._clock()
        with self._rows.lock:
            view = self._aggregator.update(samples, now)
            self._lines.extend(journal.device_changes(self._devices, view.devices))
            self._devices = view.devices
            self._sampled_wall_s = time.time()
            regime = self._adopt(self._controller.observe(view, Evidence(), Work(), now), now)
            self._windows.sweep(now, SWEPT_PER_SAMPLE)
            self._lines.extend(
                journal.more_refused(reason, decision_name(reason), count)
                for reason, count in self._refusals.overdue(now)
            )
        self._write()
        return regime

    def tick(self) -> Regime:
        """Read the GPUs once in the caller, with ``sampling="manual"``."""
        if self._sampler is not None:
            self._sampler.tick()
        return self.regime()

    def regime(self) -> Regime:
        """The Regime in force now, its age considered."""
        now = self._clock()
        with self._rows.lock:
            regime = self._adopt(self._controller.regime(now), now)
        self._write()
        return regime

    def start(self) -> None:
        """Start reading the GPUs; returns at once. Idempotent, and good again after `stop` and in a fork."""
        if not self._configured:
            self._configured = True
            journal.configured({name: self.settings.text_of(name) for name in SETTINGS}).write()
        sampler = self._sampler
        if sampler is not None and not self._manual:
            sampler.start()
        now = self._clock()
        with self._rows.lock:
            listens = sampler is None or self._manual or sampler.running
            if listens and not self._listening:
                self._controller.started(now)
            self._listening = listens
            self._adopt(self._controller.regime(now), now)
        self._write()

    def stop(self) -> None:
        """Stop reading the GPUs. The next request starts it again. Idempotent."""
        if self._sampler is not None:
            self._sampler.stop()
        with self._rows.lock:
            self._listening = False
            self._renew_at_s = -math.inf

    def count_exempt(self) -> None:
        """Count a request that is not subject to the throttle."""
        with self._rows.lock:
            self._rows.exempt += 1

    def hint(self, name: str) -> None:
        """Count something odd that was dealt with, under a name from code, never from a request."""
        with self._rows.lock:
            self._rows.hints[name] = self._rows.hints.get(name, 0) + 1

    def snapshot(self) -> Snapshot:
        """Everything there is to see, as one immutable value; tens of microseconds under the lock."""
        now = self._clock()
        with self._rows.lock:
            regime = self._adopt(self._controller.regime(now), now)
            snapshot = self._picture(regime, now)
        self._write()
        return snapshot

    def _picture(self, regime: Regime, now: float) -> Snapshot:
        rows, windows = self._rows, self._windows
        by_class = list(zip(Priority, rows.classes, self._buckets.all, strict=True))
        requests = {(p, decision_name(Reason.OK), Reason.OK): row.admitted for p, row, _ in by_class}
        for p, row, _ in by_class:
            requests |= {(p, decision_name(reason), reason): n for reason, n in row.refused.items()}
        return Snapshot(
            taken_at_s=now,
            taken_at_wall_s=time.time(),
            policy=self.settings.policy,
            regime=regime,
            ready=regime.why is not Why.LOST,
            requests=requests,
            exempt=rows.exempt,
            active={p: row.active for p, row, _ in by_class},
            outcomes={(p, outcome): n for p, row, _ in by_class for outcome, n in row.outcomes.items()},
            durations={p: row.durations.copy() for p, row, _ in by_class},
            gate=None,
            queue_time={},
            pressure={},
            would_refuse={},
            dry_run=False,
            rate_limit_rps={p: bucket.rate for p, _, bucket in by_class},
            tokens={p: bucket.tokens(now) for p, _, bucket in by_class},
            users=windows.users,
            devices=self._devices,
            last_sample_wall_s=self._sampled_wall_s,
            controller_errors=_errors(self._sampler),
            stale_results=rows.stale_results,
            hints=dict(rows.hints),
        )

    def _renew(self) -> None:
        """Do what a request finds due: start the sampling, and ask the controller about an older sample."""
        if self._listening:
            self.regime()
        else:
            self.start()

    def _note_refusal(self, demand: Demand, decision: Decision, now: float) -> None:
        reason = decision.reason
        self._rows.classes[demand.priority].refused[reason] += 1
        count = self._refusals.note(reason, now)
        if count:
            user = demand.user
            client = user if is_identity(user) else self._identity.of("user", user)
            self._lines.append(journal.refused(demand, decision, decision_name(reason), count, client))
            if not self._full and self._windows.overflowed:
                self._full = True
                self._lines.append(journal.users_full(self.settings.max_users))

    def _adopt(self, regime: Regime, now: float) -> Regime:
        before, self._regime = self._regime, regime
        self._renew_at_s = regime.until_s if self._listening else -math.inf
        if regime is not before:
            if regime.ceilings != before.ceilings:
                self._open = regime.factor > 0.0
                self._buckets.rescale(regime.ceilings, now)
            self._lines.extend(journal.changes(before, regime))
        return regime

    def _write(self) -> None:
        """Write the lines that changes under the lock have left behind; a handler may be slow."""
        while self._lines:
            with self._rows.lock:
                lines, self._lines = self._lines, []
            for line in lines:
                line.write()

    def _make_sampler(self, gpu: GpuProvider | None) -> Sampler | None:
        settings = self.settings
        provider = (
            gpu
            if gpu is not None
            else select(settings.gpu, devices=settings.gpu_devices, clock=self._clock, manual=self._manual)
        )
        if provider is None:
            return None
        myself = weakref.ref(self)

        def samples(rows: Sequence[GpuSample]) -> None:
            throttle = myself()
            if throttle is not None:
                throttle.observe(rows)

        def failure(error: Exception) -> None:
            throttle = myself()
            if throttle is not None:
                throttle._failed(error)  # noqa: SLF001 - a method of this class, reached through a weak reference

        sampler = Sampler(
            provider, samples, failure, interval_s=settings.sample_interval_s, clock=self._clock
        )
        weakref.finalize(self, sampler.stop, 0.0).atexit = False
        return sampler

    def _failed(self, error: Exception) -> None:
        now = self._clock()
        with self._rows.lock:
            if isinstance(error, NoSource):
                self._adopt(self._controller.silent(now), now)
            elif isinstance(error, ProviderMisconfigured):
                self._adopt(self._controller.gone(now), now)
        self._write()

    def _after_fork(self) -> None:
        """The parent's thread may have held the lock, and its counts are not the child's."""
        self._windows.mend()
        rows = Rows(self._clock)
        self._rows.lock = rows.lock  # where permits that the parent gave are settled
        self._rows = rows
        self._listening = False
        self._renew_at_s = -math.inf


def _errors(sampler: Sampler | None) -> int:
    if sampler is None:
        return 0
    return sampler.failures + sampler.overruns + sampler.implausible + sampler.callback_errors


def _door_shut(regime: Regime, now: float) -> Decision:
    wait = regime.reopens_s - now
    lost = regime.why is Why.LOST
    return Decision(
        allowed=False,
        reason=Reason.GPU,
        detail="gpu:lost" if lost else "gpu:stop",
        policy="gpu",
        limit=0.0,
        remaining=0.0,
        retry_after_s=wait,
        reset_after_s=wait,
    )


def _user_windows(settings: Settings) -> UserWindows:
    return UserWindows(
        settings.user_limits,
        by_plan={name: plan.user_limit for name, plan in settings.plans.items()},
        by_route={route.name: route.user_limit for route in settings.routes},
        address_factor=settings.address_factor,
        max_users=settings.max_users,
    )


def _controller(settings: Settings, now: float) -> Controller:
    interval_s = settings.sample_interval_s
    high, mid, low = (rate / settings.workers for rate in settings.rates_rps)
    rules = ControlRules(
        policy=settings.policy,
        rates=(high, mid, low),
        table=TierTable(settings.tiers),
        hysteresis=Hysteresis(
            settings.tier_samples,
            settings.tier_release_samples,
            settings.tier_release_margin_pct,
            settings.tier_recovery_step,
        ),
        staleness=Staleness(
            interval_s, settings.gpu_stale_after_s, settings.gpu_blind_after_s, settings.gpu_unknown
        ),
        interval_s=interval_s,
    )
    return controller(rules, now)


_ALL: weakref.WeakSet[Throttle] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for throttle in list(_ALL):
        throttle._after_fork()  # noqa: SLF001 - a method of this module's class


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
