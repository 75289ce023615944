"""Inside vLLM: what is read from its configuration, however broken, and the limits that follow from it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.asgi.run_app import lifespan, request, statuses
from tests.asgi.vllm_server import PARALLEL, VllmApp, inside, limit_of, permits_of, serve, vllm_state


@pytest.mark.parametrize(
    ("scheduler", "parallel", "limit"),
    [
        ({}, {}, 9),
        ({"max_num_seqs": 1}, {}, 2),
        ({"max_num_seqs": 256}, {}, 288),
        ({"max_num_active_seqs": 4}, {}, 5),
        ({"max_num_queued_reqs": 6}, {}, 6),
        ({"max_num_queued_reqs": 0}, {}, 1),
        ({}, {"data_parallel_size": 4}, 36),
        ({}, {"data_parallel_size": 4, "_api_process_count": 4}, 9),
        ({}, {"data_parallel_size": 4, "data_parallel_size_local": 1, "local_engines_only": True}, 9),
        ({"max_num_queued_reqs": 9}, {"_api_process_count": 2}, 4),
    ],
)
async def test_limit_begins_and_ends_at_the_capacity(scheduler: Any, parallel: Any, limit: float) -> None:
    middleware = await serve(VllmApp(), vllm_state(scheduler, parallel))
    assert limit_of(middleware) == limit


async def test_set_maximum_wins_but_not_over_the_limit_of_vllm() -> None:
    middleware = await serve(VllmApp(), vllm_state(), inflight_max=30, inflight_start=30)
    assert limit_of(middleware) == 30
    middleware = await serve(
        VllmApp(), vllm_state({"max_num_queued_reqs": 12}), inflight_max=30, inflight_start=30
    )
    assert limit_of(middleware) == 12


class Hostile:
    """Raises at every read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest reads these
            raise AttributeError(name)
        raise RuntimeError(f"no {name}")


@pytest.mark.parametrize("value", [None, "8", 8.0, True, 0, -1, [], RuntimeError("no")])
@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_active_seqs", "max_num_queued_reqs", "policy"])
async def test_unusable_scheduler_value_leaves_the_default(name: str, value: Any) -> None:
    app = VllmApp()
    middleware = await serve(app, vllm_state({name: value}), inflight_start=7)
    known = {"max_num_seqs": 7}.get(name, 9) if name != "max_num_queued_reqs" or value != 0 else 1
    assert limit_of(middleware) in {known, 7}
    assert (await request(middleware, "/v1/completions")).status == 200


@pytest.mark.parametrize("value", [None, "2", 2.5, False, 0, -3, Hostile()])
@pytest.mark.parametrize("name", [*PARALLEL, "data_parallel_size_local", "local_engines_only"])
async def test_unusable_parallel_value_leaves_the_default(name: str, value: Any) -> None:
    middleware = await serve(VllmApp(), vllm_state(parallel={name: value}))
    assert limit_of(middleware) == 9


@pytest.mark.parametrize(
    "config",
    [SimpleNamespace(), SimpleNamespace(scheduler_config=None, parallel_config=3), Hostile(), "text"],
)
async def test_unreadable_configuration_is_logged_and_served(
    config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    state = vllm_state()
    state.vllm_config = config
    with caplog.at_level(logging.INFO, logger="vllm.autoglm_throttle"):
        middleware = await serve(VllmApp(), state)
    assert limit_of(middleware) == 64
    lines = [record for record in caplog.records if record.name == "vllm.autoglm_throttle"]
    assert sum(record.levelno == logging.WARNING for record in lines) <= 1
    assert "unknown number" in lines[-1].getMessage()
    assert (await request(middleware, "/v1/completions")).status == 200


@pytest.mark.parametrize("state", [None, SimpleNamespace(), Hostile(), SimpleNamespace(vllm_config=1)])
async def test_other_app_is_left_alone(state: Any) -> None:
    app = VllmApp()
    middleware = await serve(app, state, user_limit="1/minute")
    assert limit_of(middleware) == 64
    assert middleware.app is app
    assert await statuses(middleware, "/ping", 2) == [200, 429]


@pytest.mark.parametrize("count", [RuntimeError("dead"), None, "3", -1, 2.0])
async def test_unreadable_count_of_requests_is_logged_once(
    count: Any, caplog: pytest.LogCaptureFixture
) -> None:
    middleware = await serve(VllmApp(), vllm_state(unfinished=count))
    for permit in permits_of(middleware, 3):
        permit.pause()
        permit.settle()
    assert sum("does not count" in record.getMessage() for record in caplog.records) == 1
    assert limit_of(middleware) == 9


async def test_paused_request_in_the_engine_keeps_its_place_there() -> None:
    state = vllm_state()
    middleware = await serve(VllmApp(), state, queue_max=0)
    permits = permits_of(middleware, 9)
    state.engine_client.unfinished = 9
    permits[0].pause()
    assert not permits_of(middleware, 1)
    state.engine_client.unfinished = 8
    permits[1].pause()
    assert len(permits_of(middleware, 2)) == 1


async def test_absurd_count_of_requests_leaves_the_floor() -> None:
    middleware = await serve(VllmApp(), vllm_state(unfinished=1_000_000), queue_max=0)
    assert len(permits_of(middleware, 9)) == 2


async def test_two_servers_admit_the_limit_of_one() -> None:
    servers = [await serve(VllmApp(), vllm_state(parallel={"_api_process_count": 2}), user_limit="10/minute")]
    servers.append(
        await serve(VllmApp(), vllm_state(parallel={"_api_process_count": 2}), user_limit="10/minute")
    )
    answers = [await request(one, "/v1/completions") for _ in range(20) for one in servers]
    assert sum(answer.status == 200 for answer in answers) == 10
    assert answers[0].header("x-ratelimit-limit-requests") == "5"


async def test_default_identity_is_the_key_bounded_by_address() -> None:
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute", address_factor=2)
    seen = [
        (await request(middleware, "/v1/models/x", headers={"authorization": f"Bearer k-{key}"})).status
        for key in (1, 1, 2, 3)
    ]
    assert seen == [200, 429, 200, 429]


async def test_set_identity_wins() -> None:
    middleware = await serve(VllmApp(), vllm_state(), user_limit="1/minute", identity="address")
    seen = [
        (await request(middleware, "/x", headers={"authorization": f"Bearer k-{key}"})).status
        for key in (1, 2)
    ]
    assert seen == [200, 429]


async def test_second_start_adapts_nothing_again() -> None:
    middleware = await serve(VllmApp(), vllm_state())
    app, admission = middleware.app, middleware.throttle.admission
    await lifespan(inside(middleware, vllm_state({"max_num_seqs": 99})))
    assert (middleware.app, middleware.throttle.admission) == (app, admission)
