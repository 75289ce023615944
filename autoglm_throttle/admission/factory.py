"""Builds the parts of a Throttle from settings."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from autoglm_throttle._runtime.serial_lock import SerialLock
from autoglm_throttle.admission.settlement import Settlement
from autoglm_throttle.events import EventQueue
from autoglm_throttle.limiting.concurrency_limiter import AdaptiveConcurrencyLimiter
from autoglm_throttle.limiting.decisions import HasTokens
from autoglm_throttle.limiting.engine_limits import NO_ENGINE
from autoglm_throttle.limiting.fixed_limit import FixedConcurrencyLimit
from autoglm_throttle.limiting.token_bucket import PriorityBuckets, SharedBudget
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.limiting.user_slots import SlottedUserLimits, UserSlots
from autoglm_throttle.limiting.work_class import LEARNED_SLO_MIN_S
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.groups.gpu import ENGINES
from autoglm_throttle.settings.groups.tokens import TOKEN_FIELDS, named_limits
from autoglm_throttle.types import (
    CONCURRENCY,
    SLOT_HOLD_S,
    Clock,
    Decision,
    Demand,
    EngineCapacity,
    GpuProvider,
    Policy,
    SlotLimit,
)
from autoglm_throttle.types.identity import CallerHasher

if TYPE_CHECKING:
    from autoglm_throttle.control.adaptive import Controller
    from autoglm_throttle.control.quota import Quota
    from autoglm_throttle.limiting.token_limits import TokenLimits
    from autoglm_throttle.store.breakers.sync import RedisBreakerStore
    from autoglm_throttle.store.client import RedisClients
    from autoglm_throttle.store.fleet import FleetSync, LeasedBuckets
    from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore
    from autoglm_throttle.store.shared_limits import SharedUserLimits
    from autoglm_throttle.store.shared_tokens import SharedTokenLimits


@dataclass(frozen=True, slots=True)
class AdmissionParts:
    """The limits of one throttle, and the state of its permits."""

    settlement: Settlement
    buckets: PriorityBuckets | LeasedBuckets
    # Takes the tokens of a demand, or rejects it: first by the memory quotas, if there are any.
    take_tokens: Callable[[Demand, float], HasTokens | Decision]
    shared_budget: SharedBudget
    user_limits: UserLimits | SharedUserLimits
    limit_sets: LimitSets  # The user limits by demand
    user_slots: UserSlots | None  # Those limits, if they bound requests in progress, too
    token_limits: TokenLimits | SharedTokenLimits | None  # None: no route costs tokens
    quota: Quota | None
    fleet: FleetSync | None  # Renews the leases of the buckets; None: the rates are local to this process
    store: SharedUserLimits | None  # The user limits if they are shared through a store
    events: EventQueue
    dry_run: bool  # Whether rejections are only counted


def admission_parts(
    settings: Settings,
    clock: Clock,
    redis: Callable[[], Any] | None = None,
    engine: EngineCapacity = NO_ENGINE,
) -> AdmissionParts:
    """Create the limits of the settings; ``redis`` makes the client of each event loop, if it is given."""
    now = clock()
    lock = SerialLock()
    hasher = CallerHasher(settings.identity_key)
    buckets = priority_buckets(settings, now)
    memory = quota(settings)
    take_tokens: Callable[[Demand, float], HasTokens | Decision] = buckets.take
    if memory is not None:

        def take_tokens(demand: Demand, now: float) -> HasTokens | Decision:
            return memory.rejection(demand, now) or buckets.take(demand, now)

    members = fleet(settings, buckets, lock, clock)
    users = user_limits(settings, hasher, lock, clock, redis, members)
    sets = limit_sets(settings)
    if engine.processes > 1 and isinstance(users, UserLimits):
        from autoglm_throttle.store.fallback import fair_share

        sets = sets.map(partial(fair_share, processes=engine.processes))
        users = limits_in_memory(settings, sets, engine.processes)
    return AdmissionParts(
        settlement=Settlement(clock, lock, concurrency_limiter(settings, now, engine)),
        buckets=buckets,
        take_tokens=take_tokens,
        shared_budget=SharedBudget(settings.rates, now),
        user_limits=users,
        limit_sets=sets,
        user_slots=users if settings.users.concurrency_per_user and isinstance(users, UserSlots) else None,
        token_limits=token_limits(settings, users, engine.processes),
        quota=memory,
        fleet=members,
        store=None if isinstance(users, UserLimits) else users,
        events=EventQueue(lock, settings.observe.log_refused_every_s, hasher.text, settings.users.max_users),
        dry_run=settings.control.dry_run,
    )


def priority_buckets(settings: Settings, now: float) -> PriorityBuckets | LeasedBuckets:
    """Create the buckets of this process: its part of the rates, or its leases of a fleet's rates."""
    if settings.fleet.fleet:
        from autoglm_throttle.store.fleet import LeasedBuckets

        return LeasedBuckets(settings.rates, settings.fleet, now)
    return PriorityBuckets(settings.rates, now)


def fleet(
    settings: Settings, buckets: PriorityBuckets | LeasedBuckets, lock: SerialLock, clock: Clock
) -> FleetSync | None:
    """Create the fleet that renews the leases; None where the rates are local to this process."""
    if isinstance(buckets, PriorityBuckets):
        return None
    from autoglm_throttle.store.client import TIMEOUT_S
    from autoglm_throttle.store.fleet import FleetSync

    connect = partial(redis_clients(settings).sync, TIMEOUT_S)
    return FleetSync(buckets, lock, settings.store, settings.fleet, connect, clock)


def gpu_sources(
    settings: Settings, given: GpuProvider | Sequence[GpuProvider] | None, clock: Clock, *, manual: bool
) -> list[GpuProvider]:
    """Return the given telemetry sources, else the sources named by the settings.

    In a fleet of GPUs the first source of device samples is read for all hosts; sources of engine samples
    stay local to this host.
    """
    if given is None:
        from autoglm_throttle.gpu.select import providers

        sources = list(providers(settings.gpu, clock=clock, manual=manual))
    else:
        sources = list(given) if isinstance(given, Sequence) else [given]
    if not settings.fleet.fleet_gpu:
        return sources
    at = next((n for n, one in enumerate(sources) if one.name.partition(":")[0] not in ENGINES), None)
    if at is None:
        return [_fleet_gpu(settings, None, clock), *sources]
    sources[at] = _fleet_gpu(settings, sources[at], clock)
    return sources


def _fleet_gpu(settings: Settings, local: GpuProvider | None, clock: Clock) -> GpuProvider:
    """Create the provider for the GPUs of all hosts of a fleet, this host included."""
    from autoglm_throttle.store.client import TIMEOUT_S
    from autoglm_throttle.store.gpu import RemoteGpuProvider

    connect = partial(redis_clients(settings).sync, TIMEOUT_S)
    host = settings.fleet.fleet_host or socket.gethostname()
    return RemoteGpuProvider(local, connect, host, settings.store, settings.gpu, clock)


def limit_sets(settings: Settings) -> LimitSets:
    """Create the sets of user limits."""
    return LimitSets(
        settings.users.by_priority,
        by_plan={name: plan.user_limit for name, plan in settings.plans.items()},
        by_route={route.name: route.user_limit for route in settings.routes},
        address_factor=settings.users.address_factor,
    )


def limits_in_memory(settings: Settings, sets: LimitSets, processes: int = 1) -> UserLimits:
    """Create the user limits of one of several processes, with slots if requests in progress are limited."""
    users, max_users = settings.users, settings.users.max_users
    if not users.concurrency_per_user:
        return UserLimits(sets, max_users)
    limits = (SlotLimit(CONCURRENCY, users.concurrency_per_user, SLOT_HOLD_S),)
    (slots,) = LimitSets(
        [limits] * 3, by_plan={}, by_route={}, address_factor=users.address_factor, prefix=f"{CONCURRENCY}."
    )
    return SlottedUserLimits(sets, max_users, slots, processes)


def token_limit_sets(settings: Settings) -> dict[str, LimitSets]:
    """Create the sets of token limits of each kind that has any."""
    sets = {}
    for kind, field in TOKEN_FIELDS.items():
        of_kind = LimitSets(
            [named_limits(kind, settings.tokens.by_kind[kind]) or ()] * 3,
            by_plan={name: named_limits(kind, getattr(plan, field)) for name, plan in settings.plans.items()},
            by_route={each.name: named_limits(kind, getattr(each, field)) for each in settings.routes},
            address_factor=settings.users.address_factor,
            prefix=f"{kind}.",
        )
        if any(of_kind):
            sets[kind] = of_kind
    return sets


def token_limits(
    settings: Settings, users: UserLimits | SharedUserLimits, processes: int
) -> TokenLimits | SharedTokenLimits | None:
    """Create the limits of tokens, for one of several processes; None without any."""
    sets, max_users = token_limit_sets(settings), settings.users.max_users
    if not sets:
        return None
    from autoglm_throttle.limiting.token_limits import TokenLimits
    from autoglm_throttle.store.fallback import fair_share

    if isinstance(users, UserLimits):
        share = partial(fair_share, processes=processes)
        return TokenLimits(users, {kind: each.map(share) for kind, each in sets.items()}, max_users)
    from autoglm_throttle.store.shared_tokens import SharedTokenLimits

    users.fallback.tokens = local = TokenLimits(users.fallback.limits, sets, max_users)
    return SharedTokenLimits(users, local, sets)


def user_limits(
    settings: Settings,
    hasher: CallerHasher,
    lock: SerialLock,
    clock: Clock,
    redis: Callable[[], Any] | None = None,
    fleet_sync: FleetSync | None = None,
) -> UserLimits | SharedUserLimits:
    """Create the user limits: in memory, or in the store of the settings.

    ``fleet_sync`` knows the number of processes, where ``settings.workers`` does not.
    """
    sets = limit_sets(settings)
    is_limited = any(sets) or settings.users.concurrency_per_user or token_limit_sets(settings)
    store = shared_store(settings, redis) if is_limited else None
    limits = limits_in_memory(settings, sets)
    if store is None:
        return limits
    from autoglm_throttle.store.fallback import StoreFallback
    from autoglm_throttle.store.shared_limits import SharedUserLimits

    # An explicit number of workers takes precedence over the counted members of the fleet.
    counted = fleet_sync if settings.rates.workers == 1 else None

    def processes() -> int:
        return settings.rates.workers if counted is None else counted.leases.members

    fallback = StoreFallback(sets, settings.store, limits, processes)
    windows = SharedUserLimits(hasher.text, store, settings.store, fallback, lock, clock)
    if fleet_sync is not None:  # same server: a loss found by one is reported to the other
        leases = fleet_sync.leases
        windows.on_store_lost, leases.on_store_lost = leases.report_failure, windows.report_failure
    return windows


def shared_store(settings: Settings, redis: Callable[[], Any] | None) -> RedisUserLimitStore | None:
    """Create the store of the settings; its modules are imported here, only if one is configured."""
    if settings.store.redis_url is None and redis is None:
        return None
    from autoglm_throttle.store.redis_user_limits import RedisUserLimitStore

    return RedisUserLimitStore(settings.store, redis)


def redis_clients(settings: Settings) -> RedisClients:
    """Create clients of the URL in the settings; their modules are imported here."""
    from autoglm_throttle.store.client import RedisClients

    return RedisClients(settings.store)


def breaker_store(settings: Settings, clock: Clock) -> RedisBreakerStore | None:
    """Create the shared store of breaker states; None where breakers are local to the process."""
    if not settings.shared_breakers.shared:
        return None
    from autoglm_throttle.store.breakers.sync import RedisBreakerStore
    from autoglm_throttle.store.client import TIMEOUT_S

    clients, breakers = redis_clients(settings), settings.shared_breakers
    connect = partial(clients.sync, TIMEOUT_S)
    return RedisBreakerStore(connect, settings.store, breakers, clock, cluster=clients.cluster)


def concurrency_limiter(
    settings: Settings, now: float, engine: EngineCapacity = NO_ENGINE
) -> AdaptiveConcurrencyLimiter | FixedConcurrencyLimit:
    """Create the limit on requests in flight for the policy, up to the capacity of an ``engine``."""
    if settings.control.policy not in {Policy.ADAPTIVE, Policy.CONCURRENCY}:
        maximum = settings.concurrency.inflight_max or math.inf
        maximum = min(maximum, engine.most)
        return FixedConcurrencyLimit(maximum, settings.concurrency.slo_s or LEARNED_SLO_MIN_S)
    return AdaptiveConcurrencyLimiter(
        settings.concurrency,
        now,
        memory_target=settings.gpu.gpu_memory_target,
        workers=settings.rates.workers,
        dry_run=settings.control.dry_run,
        objectives={route.name: route.slo_s for route in settings.routes if route.slo_s is not None},
        engine=engine,
    )


def quota(settings: Settings) -> Quota | None:
    """Create the resource quotas; None without ``QUOTAS``."""
    if not settings.quota.quotas:
        return None
    from autoglm_throttle.control.quota import Quota

    return Quota(settings.quota, settings.gpu, settings.routes)


def controller(settings: Settings, now: float) -> Controller:
    """Create the controller of the policy; telemetry counts as starting at ``now``, in monotonic seconds."""
    from autoglm_throttle.control.adaptive import AdaptiveController
    from autoglm_throttle.control.tiers import NominalController, TierController

    control, gpu, rates = settings.control, settings.gpu, settings.rates
    if control.policy is Policy.ADAPTIVE:
        # The members of a fleet are counted at run time, and the controller divides the rates by them.
        workers = 1 if settings.fleet.fleet else rates.workers
        high, mid, low = (rate / workers for rate in rates.rates_rps)
        return AdaptiveController(control, gpu, (high, mid, low), now)
    make = TierController if control.policy is Policy.TIERS else NominalController
    return make(control, gpu, now)
