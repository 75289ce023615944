"""``/metrics`` as a scraper meets it."""

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message

from autoglm_throttle import ConfigError, ThrottleMiddleware
from autoglm_throttle.observe import METRICS, collector, metrics_app
from autoglm_throttle.testing import ManualThrottle, assert_shed, throttle_for_tests


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://service", follow_redirects=True
    )


async def call(app: ASGIApp, scope: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(dict(message))

    await app({"type": "http", "method": "GET", "path": "/", "headers": [], **scope}, receive, send)
    return sent


def starlette_route(throttle: ManualThrottle) -> Any:
    app = Starlette(routes=[Route("/metrics", metrics_app(throttle))])
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


def starlette_mount(throttle: ManualThrottle) -> Any:
    app = Starlette(routes=[Mount("/metrics", metrics_app(throttle))])
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


def fastapi_mount(throttle: ManualThrottle) -> Any:
    app = FastAPI()
    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    app.mount("/metrics", metrics_app(throttle))
    return app


def wrapped(throttle: ManualThrottle) -> Any:
    app = FastAPI()
    app.mount("/metrics", metrics_app(throttle))
    return ThrottleMiddleware(app, throttle=throttle)


@pytest.mark.parametrize("attach", [starlette_route, starlette_mount, fastapi_mount, wrapped])
async def test_metrics_are_served_while_all_is_rejected(attach: Callable[[ManualThrottle], Any]) -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 99.0
    throttle.tick(3)
    async with client(attach(throttle)) as scraper:
        assert_shed(await scraper.get("/other"))
        for path in ("/metrics", "/metrics/"):
            answer = await scraper.get(path)
            if attach is starlette_route and path == "/metrics/":
                continue  # there is no such route
            assert answer.status_code == 200
            names = [family.name for family in text_string_to_metric_families(answer.text)]
            assert names == [spec.name for spec in METRICS]
    assert throttle.snapshot().exempt >= 2


async def test_metrics_format_follows_the_accept_header() -> None:
    async with client(metrics_app(throttle_for_tests())) as scraper:
        plain = await scraper.get("/metrics")
        openmetrics = await scraper.get("/metrics", headers={"accept": "application/openmetrics-text"})
        chosen = await scraper.get("/metrics?name[]=autoglm_throttle_factor_ratio")
    assert plain.headers["content-type"].startswith("text/plain")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")
    assert len(list(text_string_to_metric_families(chosen.text))) == 1


@pytest.mark.parametrize(
    "scope",
    [
        {"headers": [(b"accept", b"\xff\xfe"), (b"x-odd", b"\x80"), (b"\xff", b"1")]},
        {"headers": [(b"accept-encoding", b"\xff")]},
        {"query_string": b"name[]=\xff"},
        {"query_string": b"name[]=%ff&name[]="},
    ],
)
async def test_bytes_that_are_no_text_are_no_server_error(scope: dict[str, Any]) -> None:
    sent = await call(metrics_app(throttle_for_tests()), scope)
    assert sent[0]["status"] == 200


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("POST", 405), ("DELETE", 405)])
async def test_is_only_read(method: str, status: int) -> None:
    async with client(metrics_app(throttle_for_tests())) as scraper:
        answer = await scraper.request(method, "/metrics")
    assert answer.status_code == status
    assert answer.headers.get("allow") == ("GET, HEAD" if status == 405 else None)


async def test_other_protocols_are_declined() -> None:
    app = metrics_app(throttle_for_tests())
    assert [message["type"] for message in await call(app, {"type": "websocket"})] == ["websocket.close"]
    assert await call(app, {"type": "lifespan"}) == []


@pytest.fixture
def no_prometheus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)


@pytest.mark.usefixtures("no_prometheus")
async def test_without_prometheus_the_path_names_the_package() -> None:
    async with client(metrics_app(throttle_for_tests())) as scraper:
        answer = await scraper.get("/metrics")
    assert answer.status_code == 404
    assert "pip install 'prometheus-client>=" in answer.text


@pytest.mark.usefixtures("no_prometheus")
def test_without_prometheus_the_start_fails_if_enabled() -> None:
    with pytest.raises(ConfigError, match=r"METRICS.*prometheus-client.*pip install 'prometheus-client>="):
        metrics_app(throttle_for_tests(metrics="prometheus"))
    with pytest.raises(ConfigError, match="prometheus-client"):
        collector(throttle_for_tests())


@pytest.mark.parametrize("package", [True, False])
async def test_off_is_off(package: bool, request: pytest.FixtureRequest) -> None:
    if not package:
        request.getfixturevalue("no_prometheus")
    async with client(metrics_app(throttle_for_tests(metrics="off"))) as scraper:
        answer = await scraper.get("/metrics")
    assert (answer.status_code, answer.text) == (404, "metrics are off (METRICS=off)\n")


@pytest.mark.parametrize("directory", ["", "/tmp/metrics"])
def test_the_mode_for_several_processes_is_warned_about(
    directory: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", directory)
    with caplog.at_level(logging.WARNING):
        metrics_app(throttle_for_tests())
    assert ("PROMETHEUS_MULTIPROC_DIR" in caplog.text) is bool(directory)


def test_multiprocess_mode_exports_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    sent = asyncio.run(call(metrics_app(throttle_for_tests()), {}))
    assert b"autoglm_throttle_factor_ratio 1.0" in sent[1]["body"]
    every_process = CollectorRegistry()
    MultiProcessCollector(every_process)  # type: ignore[no-untyped-call]
    assert generate_latest(every_process) == b""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("app_of", [Starlette, FastAPI])
async def test_a_mount_redirects_to_the_slash_and_a_route_does_not(app_of: type[Starlette]) -> None:
    throttle = throttle_for_tests()
    mounted, routed = app_of(), app_of()
    mounted.mount("/metrics", metrics_app(throttle))
    routed.router.routes.append(Route("/metrics", metrics_app(throttle)))
    for app, statuses in ((mounted, [307, 200]), (routed, [200])):
        app.add_middleware(ThrottleMiddleware, throttle=throttle)
        async with client(app) as scraper:
            answer = await scraper.get("/metrics")
        assert [each.status_code for each in (*answer.history, answer)] == statuses


async def test_a_registry_of_ones_own_takes_the_collector() -> None:
    registry = CollectorRegistry()
    throttle = throttle_for_tests()
    registry.register(collector(throttle))
    assert registry.get_sample_value("autoglm_throttle_factor_ratio") == 1.0
