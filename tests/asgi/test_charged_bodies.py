"""A request is charged at its head, asks for a slot after its body, and gets back what it did not use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from autoglm_throttle import Fallback, Priority, ThrottleMiddleware
from autoglm_throttle.admission import factory
from autoglm_throttle.testing import ManualClock
from tests.admission.limited_throttle import with_budget
from tests.admission.test_throttle_quotas import device, filled
from tests.asgi.guarded_app import SORRY, counted
from tests.asgi.queued_clients import part, settled, taken
from tests.asgi.run_app import http_scope
from tests.asgi.slot_scenes import Scene, Stage, chunk, head
from tests.asgi.streams import outcomes
from tests.asgi.test_slot_bodies import BACKENDS, POST, on
from tests.store.scripted_store import ScriptedStore, denied, granted

pytestmark = pytest.mark.usefixtures("quiet_loop")

TOKENS = 36.0
SCARCE: dict[str, Any] = {"rate_mid_rps": 0.01, "burst_s": 3600.0, "user_limit": "2/hour"}
"""So slow a refill that a token which does not come back stays away."""

REST = part(b"rest", more=False)


def tokens(scene: Scene) -> float:
    return scene.throttle.snapshot().tokens[Priority.MID]


async def assert_nothing_charged(scene: Scene) -> None:
    """All tokens and both units are there, and no body is awaited any more."""
    assert tokens(scene) == pytest.approx(TOKENS)
    assert scene.middleware.slot_watch.bodies == 0
    assert taken(scene.throttle) == (0, 0, 0)
    assert [(await scene.comes()).is_inside for _ in range(3)] == [True, True, False]


async def exhaust_units(scene: Scene) -> None:
    assert (await scene.comes()).is_inside
    assert (await scene.comes()).is_inside


async def exhaust_tokens(scene: Scene) -> None:
    buckets = scene.throttle.admission.parts.buckets
    buckets.all[Priority.MID].take(TOKENS, scene.throttle.clock())


@BACKENDS
@pytest.mark.parametrize("sent", [(), (part(b"a"), part(b"b"), part(b"c"))], ids=["head", "parts"])
@pytest.mark.parametrize(
    ("exhaust", "reason"), [(exhaust_units, "user:user-3600s"), (exhaust_tokens, "rate:mid")]
)
def test_head_beyond_a_limit_is_rejected_without_its_body(
    backend: str, exhaust: Callable[[Scene], Awaitable[None]], reason: str, sent: Any
) -> None:
    async def scene(group: Any) -> None:
        heads = Scene(group, 9, **SCARCE)
        await exhaust(heads)
        before = tokens(heads)
        stage = await heads.comes(*sent, **POST)
        assert stage.client.answer.status == 429
        assert json.loads(stage.client.answer.body)["reason"] == reason
        assert stage.client.ended.is_set()
        assert len(stage.client._incoming) >= len(sent) - 1, "no more is read than had begun"
        assert tokens(heads) == before
        assert heads.middleware.slot_watch.bodies == 0

    on(backend, scene)


async def times_out(scene: Scene, stage: Stage, _scope: anyio.CancelScope) -> None:
    await scene.passes(31.0)
    assert stage.client.answer.status == 408


async def times_out_unanswered(scene: Scene, stage: Stage, _scope: anyio.CancelScope) -> None:
    stage.client._send = None  # type: ignore[assignment, method-assign] # the server does not take the answer
    await scene.passes(31.0)


async def leaves(_scene: Scene, stage: Stage, _scope: anyio.CancelScope) -> None:
    stage.client.leaves()


async def sends_nonsense(_scene: Scene, stage: Stage, _scope: anyio.CancelScope) -> None:
    stage.client.sends({"body": b""})


async def is_cancelled(_scene: Scene, _stage: Stage, scope: anyio.CancelScope) -> None:
    scope.cancel()


@BACKENDS
@pytest.mark.parametrize("ends", [times_out, times_out_unanswered, leaves, sends_nonsense, is_cancelled])
def test_request_that_ends_before_its_body_is_charged_nothing(backend: str, ends: Any) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 9, **SCARCE)
        stage = Stage(bodies, http_scope(**POST), part(b"half"))
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await stage.client.run()

        group.start_soon(run)
        await settled()
        assert tokens(bodies) == TOKENS - 1.0
        assert bodies.middleware.slot_watch.bodies == 1
        await ends(bodies, stage, scope)
        await settled()
        assert stage.client.ended.is_set()
        assert outcomes(bodies.throttle) == {}
        await assert_nothing_charged(bodies)

    on(backend, scene)


@BACKENDS
def test_request_beside_too_many_bodies_is_charged_nothing(backend: str) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 9, **SCARCE, paused_max=1)
        waiting = await bodies.comes(**POST)
        stage = await bodies.comes(**POST)
        assert tokens(bodies) == TOKENS - 2.0
        await bodies.passes(0.0)
        assert json.loads(stage.client.answer.body)["reason"] == "queue:paused"
        assert tokens(bodies) == TOKENS - 1.0
        waiting.client.leaves()
        await settled()
        await assert_nothing_charged(bodies)

    on(backend, scene)


@BACKENDS
def test_slot_is_requested_after_the_body(backend: str) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 1, **SCARCE)
        first = await bodies.comes()
        stage = await bodies.comes(part(b"half"), **POST)
        assert taken(bodies.throttle) == (1, 0, 1)
        stage.client.sends(REST)
        await settled()
        assert taken(bodies.throttle) == (1, 1, 1)
        first.ends()
        await settled()
        assert stage.is_inside
        stage.receives()
        stage.receives()
        await settled()
        assert [one["body"] for one in stage.received] == [b"half", b"rest"]
        assert tokens(bodies) == TOKENS - 2.0

    on(backend, scene)


@BACKENDS
@pytest.mark.parametrize(
    ("queue_max", "waits_s", "reason"), [(0, 0.0, b"queue:full"), (9, 41.0, b"queue:timeout"), (9, 0.0, b"")]
)
def test_request_without_a_slot_after_its_body_is_charged_nothing(
    backend: str, queue_max: int, waits_s: float, reason: bytes
) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 1, **SCARCE, queue_max=queue_max)
        first = await bodies.comes()
        stage = await bodies.comes(part(b"half"), **POST)
        stage.client.sends(REST)
        await settled()
        if not reason:
            stage.client.leaves()
            await settled()
        await bodies.passes(waits_s)
        first.ends()
        await settled()
        assert stage.client.ended.is_set()
        assert stage.client.answer.status == (503 if reason else 0)
        assert reason in stage.client.answer.body
        assert tokens(bodies) == pytest.approx(TOKENS - 1.0, abs=0.5)
        second = await bodies.comes()
        assert second.is_inside
        second.ends()
        await settled()
        assert (await bodies.comes()).client.answer.status == 429, "one unit came back, not two"

    on(backend, scene)


async def test_rate_limit_field_counts_the_seconds_of_the_body() -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group, 1, user_limit="10/minute")
        stage = await bodies.comes(part(b"half"), **POST)
        await bodies.passes(20.0)
        stage.client.sends(REST)
        stage.sends(head(), chunk(more=False))
        stage.ends()
        await stage.client.ended.wait()
        assert stage.client.answer.header("ratelimit") == '"user-60s";r=9;t=40'


@BACKENDS
@pytest.mark.parametrize("exhaust", [exhaust_units, exhaust_tokens])
def test_dry_run_awaits_the_body_of_a_request_it_would_reject(backend: str, exhaust: Any) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 9, **SCARCE, dry_run=True)
        await exhaust(bodies)
        running = bodies.in_flight
        stage = await bodies.comes(part(b"half"), **POST)
        await bodies.passes(1000.0)
        assert (stage.is_inside, stage.client.ended.is_set()) == (False, False)
        assert (bodies.in_flight, bodies.middleware.slot_watch.bodies) == (running, 1)
        stage.client.sends(REST)
        await settled()
        assert stage.is_inside
        assert (bodies.in_flight, bodies.paused, bodies.middleware.slot_watch.bodies) == (running + 1, 0, 0)
        stage.receives()
        stage.receives()
        stage.ends()
        await stage.client.ended.wait()
        assert [one["body"] for one in stage.received] == [b"half", b"rest"]
        assert sum(bodies.throttle.snapshot().would_reject.values()) == 1
        assert bodies.in_flight == running

    on(backend, scene)


@BACKENDS
def test_client_that_leaves_a_dry_run_leaves_nothing_behind(backend: str) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 9, **SCARCE, dry_run=True)
        await exhaust_tokens(bodies)
        stage = await bodies.comes(part(b"half"), **POST)
        stage.client.leaves()
        await stage.client.ended.wait()
        assert (taken(bodies.throttle), bodies.paused) == ((0, 0, 0), 0)
        assert outcomes(bodies.throttle) == {"neutral": 1}

    on(backend, scene)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ScriptedStore:
    """The shared store of the next throttle with `SHARED`."""
    scripted = ScriptedStore()
    monkeypatch.setattr(factory, "shared_store", lambda *_: scripted)
    return scripted


SHARED: dict[str, Any] = {**SCARCE, "redis_url": "redis://nowhere"}


async def test_shared_store_is_asked_at_the_head_alone(store: ScriptedStore) -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group, 1, **SHARED)
        first = await bodies.comes()
        stage = await bodies.comes(part(b"half"), **POST)
        assert len(store.charged) == 2
        stage.client.sends(REST)
        await settled()
        assert taken(bodies.throttle) == (1, 1, 1)
        first.ends()
        await settled()
        assert stage.is_inside
        assert (len(store.charged), store.given_back) == (2, [])
        assert tokens(bodies) == TOKENS - 2.0
        group.cancel_scope.cancel()


async def test_slot_is_free_as_the_body_ends_with_a_shared_store(store: ScriptedStore) -> None:
    async with anyio.create_task_group() as group:
        bodies = Scene(group, 1, **SHARED)
        stage = await bodies.comes(part(b"half"), **POST)
        stage.client.sends(REST)
        await settled()
        assert stage.is_inside
        assert (len(store.charged), store.given_back) == (1, [])
        group.cancel_scope.cancel()


async def test_shared_store_denies_a_head(store: ScriptedStore) -> None:
    store.script = [denied()]
    async with anyio.create_task_group() as group:
        bodies = Scene(group, **SHARED)
        stage = await bodies.comes(part(b"a"), part(b"b"), **POST)
        assert stage.client.answer.status == 429
        assert stage.client._incoming
        assert store.given_back == []
        assert tokens(bodies) == TOKENS
        assert taken(bodies.throttle) == (0, 0, 0)


@pytest.mark.parametrize("ends", [times_out, leaves, "rejected", "leaves the queue"])
async def test_shared_store_gets_the_units_of_an_ended_request_back(store: ScriptedStore, ends: Any) -> None:
    store.script = [granted(9), granted(8)]
    async with anyio.create_task_group() as group:
        bodies = Scene(group, 1, **SHARED, queue_max=9 if ends == "leaves the queue" else 0)
        await bodies.comes()
        stage = await bodies.comes(part(b"half"), **POST)
        if callable(ends):
            await ends(bodies, stage, group.cancel_scope)
        else:
            stage.client.sends(REST)
            await settled()
            stage.client.leaves()
        await stage.client.ended.wait()
        assert [answer for _, answer in store.given_back] == [granted(8)]
        assert tokens(bodies) == pytest.approx(TOKENS - 1.0, abs=0.5)
        group.cancel_scope.cancel()


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_body_may_come_while_the_shared_store_is_asked(
    store: ScriptedStore, is_cancelled: bool
) -> None:
    store.hold = answered = asyncio.Event()
    async with anyio.create_task_group() as group:
        bodies = Scene(group, 1, **SHARED)
        stage = await bodies.comes(part(b"half"), **POST)
        stage.client.sends(REST)
        await settled()
        assert taken(bodies.throttle) == (0, 0, 0)
        if is_cancelled:
            group.cancel_scope.cancel()
        else:
            answered.set()
            await settled()
            assert stage.is_inside
            stage.receives()
            stage.receives()
            stage.ends()
            await stage.client.ended.wait()
            assert [one["body"] for one in stage.received] == [b"half", b"rest"]
    assert tokens(bodies) == TOKENS - (not is_cancelled)
    assert taken(bodies.throttle) == (0, 0, 0)


def shut(throttle: Any) -> None:
    """Let the GPU be so busy that no request is admitted."""
    throttle.gpu.utilization_pct = 99
    throttle.tick(3)


@BACKENDS
@pytest.mark.parametrize("reason", ["gpu", "queue", "paused"])
def test_fallback_replaces_the_rejection_at_the_head_and_after_the_body(backend: str, reason: str) -> None:
    async def scene(group: Any) -> None:
        policies: dict[str, dict[str, Any]] = {
            "gpu": {"policy": "tiers"},
            "queue": {"queue_max": 0},
            "paused": {"paused_max": 1},
        }
        policy = policies[reason]
        bodies = Scene(group, 1, **SCARCE, **policy)
        bodies.throttle.feature("app", fallback=Fallback(static=SORRY))
        bodies.middleware = ThrottleMiddleware(bodies._serve, throttle=bodies.throttle, breaker="app")
        bodies.app = bodies.middleware
        if reason == "gpu":
            shut(bodies.throttle)
            stage = await bodies.comes(**POST)
        elif reason == "queue":
            await bodies.comes()
            stage = await bodies.comes(part(b"half"), **POST)
            stage.client.sends(REST)
        else:
            await bodies.comes(**POST)
            stage = await bodies.comes(**POST)
            await bodies.passes(0.0)
        await stage.client.ended.wait()
        assert stage.client.answer.body == SORRY.body
        reasons = [(name, why) for name, why in counted(bodies.throttle) if name in {"degraded", "shed"}]
        assert reasons == [("degraded", "gpu" if reason == "gpu" else "queue")]
        if reason == "queue":
            assert tokens(bodies) == TOKENS - 1.0

    on(backend, scene)


@BACKENDS
def test_memory_used_up_while_the_body_came_rejects_and_charges_nothing(backend: str) -> None:
    async def scene(group: Any) -> None:
        clock = ManualClock()
        bodies = Scene(group, 9, **SCARCE, clock=clock, gpu=device(clock), quotas=True)
        bodies.throttle.tick()
        stage = await bodies.comes(part(b"half"), **POST)
        assert tokens(bodies) == TOKENS - 1.0
        filled(bodies.throttle, 85)
        stage.client.sends(REST)
        await settled()
        assert json.loads(stage.client.answer.body)["reason"] == "gpu:memory"
        assert tokens(bodies) == pytest.approx(TOKENS)
        assert bodies.in_flight == 1

    on(backend, scene)


@BACKENDS
def test_shared_budget_is_charged_with_the_slot(backend: str) -> None:
    async def scene(group: Any) -> None:
        bodies = Scene(group, 1, **SCARCE | {"user_limit": "100/hour"})
        budget = with_budget(bodies.throttle, 0.001).bucket

        def left() -> float:
            return budget.tokens(bodies.throttle.clock())

        full = left()
        stages = [await bodies.comes(part(b"half"), **POST) for _ in range(3)]
        assert left() == full
        for number in range(2):
            stages[number].client.sends(REST)
            await settled()
            assert left() == full - 1.0 - number
        # A snapshot would end the budget.
        limiter = bodies.throttle.admission.parts.settlement.limiter
        assert (limiter.in_flight, limiter.waiting) == (1, 1)
        stages[1].client.leaves()
        await settled()
        assert left() == full - 1.0
        budget.take(left(), bodies.throttle.clock())
        stages[2].client.sends(REST)
        await settled()
        assert json.loads(stages[2].client.answer.body)["reason"] == "gpu:test"
        assert (left(), limiter.in_flight, tokens(bodies)) == (0.0, 1, TOKENS - 1.0)

    on(backend, scene)
