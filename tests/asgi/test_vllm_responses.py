"""Inside vLLM: priorities for its scheduler, its own rejections, cuts, metrics, telemetry."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from autoglm_throttle import Permit, Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import Demand, Outcome, Priority
from tests.asgi.run_app import http_scope, lifespan, request, send_scope
from tests.asgi.vllm_server import EVENTS, VllmApp, inside, limit_of, permits_of, serve, vllm_state

BUSY = b'{"error":{"message":"busy","type":"Service Unavailable","param":null,"code":503}}'
TOKEN = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n'
ABORT = b'data: {"choices":[{"delta":{},"finish_reason":"abort"}]}\n\n'
DONE = b"data: [DONE]\n\n"
QUOTED = b'data: {"choices":[{"delta":{"content":"\\"finish_reason\\":\\"abort\\""}}]}\n\n'
REJECTED = b'data: {"error": {"message": "busy", "code": 503}}\n\n'


def outcomes(middleware: ThrottleMiddleware) -> dict[Outcome, int]:
    row = middleware.throttle.admission.parts.settlement.counters.classes[Priority.MID]
    return {outcome: count for outcome, count in row.outcomes.items() if count}


def fields(app: VllmApp) -> list[tuple[bytes, bytes]]:
    return [field for field in app.scopes[-1]["headers"] if field[0] == b"x-vllm-priority"]


@pytest.mark.parametrize(("stated", "sent"), [(None, b"1"), ("high", b"0"), ("low", b"2")])
async def test_scheduler_gets_our_priority_not_that_of_the_client(stated: str | None, sent: bytes) -> None:
    app = VllmApp()
    state = vllm_state({"policy": "priority"})
    middleware = await serve(app, state, priority_header_trust="any")
    more = {"x-priority": stated} if stated else {}
    await request(middleware, "/v1/completions", headers={"X-Vllm-Priority": "-9", **more})
    assert fields(app) == [(b"x-vllm-priority", sent)]
    await request(middleware, "/version", headers={"x-vllm-priority": "-9"})
    assert fields(app) == []


async def test_priority_stays_where_the_scheduler_ignores_it() -> None:
    app = VllmApp()
    middleware = await serve(app, vllm_state())
    await request(middleware, "/v1/completions", headers={"x-vllm-priority": "3"})
    assert fields(app) == [(b"x-vllm-priority", b"3")]


async def test_rejection_by_vllm_gets_a_time_and_is_neutral() -> None:
    middleware = await serve(VllmApp(BUSY, status=503), vllm_state())
    answer = await request(middleware, "/v1/completions")
    assert (answer.status, answer.body, answer.header("retry-after")) == (503, BUSY, "1")
    assert int(answer.header("retry-after-ms") or 0) >= 1
    assert outcomes(middleware) == {Outcome.NEUTRAL: 1}


async def test_time_of_rejections_by_vllm_grows_with_their_number() -> None:
    clock = ManualClock()
    middleware = await serve(VllmApp(BUSY, status=503), vllm_state(), clock)
    for _ in range(8):  # ten a second
        permit = middleware.throttle.try_admit(Demand(Priority.MID, "u"))
        assert isinstance(permit, Permit)
        clock.advance(0.1)
        permit.settle()
    times = [int((await request(middleware, "/x")).header("retry-after-ms") or 0) for _ in range(9)]
    assert times == sorted(times)
    assert times[-1] > times[0]


async def test_fixed_policy_gives_a_time_too() -> None:
    middleware = await serve(
        VllmApp(BUSY, status=503), vllm_state({"max_num_queued_reqs": 4}), policy="fixed"
    )
    assert limit_of(middleware) == 4
    assert (await request(middleware, "/x")).header("retry-after") == "1"


async def test_time_of_vllm_itself_stays() -> None:
    headers = [(b"retry-after", b"7")]
    middleware = await serve(VllmApp(BUSY, status=503, headers=headers), vllm_state())
    assert (await request(middleware, "/v1/completions")).header("retry-after") == "7"


async def test_rejection_by_vllm_does_not_open_a_breaker() -> None:
    throttle = Throttle(Settings(gpu="none", breaker_failures=1), sampling="manual", clock=ManualClock())
    middleware = ThrottleMiddleware(VllmApp(BUSY, status=503), throttle=throttle, breaker="engine")
    await lifespan(inside(middleware, vllm_state()))
    seen = [(await request(middleware, "/v1/completions")).body for _ in range(3)]
    assert seen == [BUSY] * 3
    middleware = ThrottleMiddleware(VllmApp(b"{}", status=500), throttle=throttle, breaker="engine")
    await lifespan(inside(middleware, vllm_state()))
    assert [(await request(middleware, "/x")).status for _ in range(2)] == [500, 503]


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ((TOKEN, ABORT, DONE), Outcome.NEUTRAL),
        ((TOKEN, ABORT, b'data: {"choices":[],"usage":{}}\n\n', DONE), Outcome.NEUTRAL),
        ((REJECTED, DONE), Outcome.NEUTRAL),
        ((TOKEN, TOKEN, DONE), Outcome.SUCCESS),
        ((QUOTED, DONE), Outcome.SUCCESS),
    ],
)
async def test_outcome_of_a_stream(parts: Any, outcome: Outcome) -> None:
    middleware = await serve(VllmApp(*parts, headers=EVENTS), vllm_state())
    answer = await request(middleware, "/v1/chat/completions", "POST")
    assert [m["body"] for m in answer.messages[1:-1]] == list(parts)
    assert outcomes(middleware) == {outcome: 1}


async def test_plain_answer_is_not_searched() -> None:
    middleware = await serve(VllmApp(ABORT), vllm_state())
    await request(middleware, "/v1/chat/completions", "POST")
    assert outcomes(middleware) == {Outcome.SUCCESS: 1}


def exported() -> bool:
    return REGISTRY.get_sample_value("autoglm_throttle_inflight_limit") is not None


@pytest.mark.parametrize(
    ("parallel", "settings", "is_exported"),
    [({}, {}, True), ({}, {"metrics": "off"}, False), ({"_api_process_count": 2}, {}, False)],
)
async def test_metrics_are_served_by_a_single_server(
    parallel: Any, settings: Any, is_exported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    throttle = Throttle(Settings(gpu="none", **settings), sampling="manual", clock=ManualClock())
    middleware = ThrottleMiddleware(VllmApp(), throttle=throttle)
    seen = []

    async def during() -> None:
        seen.append(exported())

    await lifespan(inside(middleware, vllm_state(parallel=parallel)), during)
    assert seen == [is_exported]
    assert not exported()


async def test_second_throttle_of_a_process_warns_and_serves(caplog: pytest.LogCaptureFixture) -> None:
    first, second = (
        ThrottleMiddleware(VllmApp(), throttle=Throttle(Settings(gpu="none"), sampling="manual"))
        for _ in "ab"
    )

    async def start_second() -> None:
        await lifespan(inside(second, vllm_state()))

    await lifespan(inside(first, vllm_state()), start_second)
    assert sum("adds no metrics" in record.getMessage() for record in caplog.records) == 1
    assert (await request(second, "/v1/completions")).status == 200


async def test_start_line_stands_below_the_logger_of_vllm(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="vllm"):
        await serve(VllmApp(), vllm_state({"policy": "priority"}, {"_api_process_count": 2}))
    line = caplog.records[-1].getMessage()
    assert "one of 2 API servers: the engine runs 4 sequences, at most 5 requests" in line
    assert "priorities are passed to the scheduler" in line


async def sampled(state: Any, monkeypatch: pytest.MonkeyPatch, **gauges: float) -> Any:
    """The row of the engine, with gauges of vLLM in the registry of the process."""
    registry = CollectorRegistry()
    for name, value in gauges.items():
        Gauge(f"vllm:{name}", "of vLLM", ["engine"], registry=registry).labels("0").set(value)
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    middleware = await serve(VllmApp(), state, metrics="off")
    middleware.throttle.tick()
    view = middleware.throttle.snapshot().view
    return None if view is None else next(row for row in view.devices if row.source == "vllm")


async def test_engine_reports_queue_and_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    row = await sampled(vllm_state(unfinished=11), monkeypatch, kv_cache_usage_perc=0.5)
    assert (row.kind, row.running, row.queued, row.kv_used_ratio) == ("engine", 8, 3, 0.5)


async def test_engine_without_statistics_reports_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    row = await sampled(vllm_state(unfinished=3), monkeypatch)
    assert (row.running, row.queued, row.kv_used_ratio) == (3, 0, None)


async def test_one_of_several_servers_knows_its_own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    state = vllm_state(parallel={"_api_process_count": 2}, unfinished=5)
    row = await sampled(state, monkeypatch, kv_cache_usage_perc=0.5)
    assert (row.running, row.queued, row.kv_used_ratio) == (4, 1, None)


async def test_unknown_slots_leave_the_gauges(monkeypatch: pytest.MonkeyPatch) -> None:
    state = vllm_state({"max_num_seqs": None}, unfinished=5)
    row = await sampled(state, monkeypatch, num_requests_running=4, num_requests_waiting=2)
    assert (row.running, row.queued) == (4, 2)


async def test_starts_are_spread_under_overload_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))

    monkeypatch.setattr("autoglm_throttle.asgi.vllm.anyio.sleep", sleep)
    clock = ManualClock()
    middleware = await serve(VllmApp(), vllm_state(), clock, slo_s=20)
    for is_overloaded in (False, True):
        permits = permits_of(middleware, 9 if is_overloaded else 4)
        clock.advance(1.0)
        for permit in permits:
            permit.settle()
        permits = permits_of(middleware, 10 if is_overloaded else 4)
        for permit in permits[:4]:
            permit.settle()
        middleware.throttle.called()
        for _ in range(2):
            assert (await request(middleware, "/v1/completions")).status == 200
        assert bool(slept) is is_overloaded
        for permit in permits:
            permit.settle()
    assert len(slept) == 1
    assert 0.01 < slept[0] < 0.07  # half of the eighth of a second


@pytest.mark.parametrize(
    ("slots", "settings", "target"), [(8, {}, 5), (256, {}, 64), (256, {"gpu_queue_target": 9}, 9)]
)
async def test_requests_that_always_wait_inside_are_no_load(slots: int, settings: Any, target: int) -> None:
    middleware = await serve(VllmApp(), vllm_state({"max_num_seqs": slots}), **settings)
    assert middleware.throttle.settings.gpu.gpu_queue_target == target


async def test_tokens_are_limited_by_the_usage_that_the_engine_reports() -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":7}}\n\n'
    middleware = await serve(
        VllmApp(TOKEN, usage, DONE, headers=EVENTS), vllm_state(), tokens_limit="1000/minute"
    )
    for max_tokens, status in ((500, 200), (500, 200), (990, 429)):
        body = b'{"model":"m","messages":[{"content":"hello"}],"max_tokens":%d,"stream":true}' % max_tokens
        scope = http_scope("/v1/chat/completions", "POST", {"content-length": str(len(body))})
        answer = await send_scope(middleware, scope, [{"type": "http.request", "body": body}])
        assert answer.status == status
    counts = middleware.throttle.snapshot().token_counts
    assert counts is not None
    assert counts.settled == 2 * 37
