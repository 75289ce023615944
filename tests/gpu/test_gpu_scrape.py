"""The provider of metrics pages, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoglm_throttle.gpu.scrape.exposition import Series, parse
from autoglm_throttle.gpu.scrape.provider import MOST_DEVICES, TIMEOUT_S, ScrapeProvider
from autoglm_throttle.settings.groups.gpu import parse_items
from autoglm_throttle.types import GpuProvider, GpuSample, ProviderMisconfigured, ProviderUnavailable
from tests.gpu.exporter_texts import series, text
from tests.gpu.metrics_server import BadServer, page, raw, served
from tests.gpu.prometheus_server import PrometheusServer
from tests.gpu.sampler_doubles import StepClock

WALL_S = 1_763_759_000.0
KINDS = ["dcgm", "prometheus", "vllm", "sglang", "trtllm", "tgi", "triton"]


@pytest.fixture
def server() -> Iterator[BadServer]:
    with served() as one:
        yield one


def provider(server: BadServer, kind: str = "dcgm", path: str = "", **how: Any) -> ScrapeProvider:
    ((_, url, _),) = parse_items([f"{kind}:{server.url(path, 'me:hunter2@')}"])
    assert url is not None
    clock = how.pop("clock", StepClock())
    wall = how.pop("wall", lambda: WALL_S)
    return ScrapeProvider(kind, url, clock=clock, wall=wall, **how)


def report(name: str) -> Any:
    return page(text(name).encode(), "Content-Type: text/plain; version=0.0.4")


def test_devices_of_an_exporter(server: BadServer, clock: StepClock) -> None:
    server.answer = report("dcgm_plain")
    one = provider(server, clock=clock)
    assert isinstance(one, GpuProvider)
    busy, idle = one.read()
    assert busy.source == one.name == f"dcgm:127.0.0.1:{server.port}"
    assert (busy.taken_at_s, busy.age_s, busy.period_s, busy.utilization_pct) == (1000.0, 0.0, None, 97.0)
    assert server.requests[0].startswith("GET /metrics HTTP/1.1")
    assert idle.host == "node-7"
    one.close()
    one.reset_after_fork()
    assert len(one.read()) == 2


def _chunked(body: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:9], body[9:], b""))


@pytest.mark.parametrize("kind", ["dcgm", "vllm"])
@pytest.mark.parametrize("end", ["length", "chunked", "close"])
def test_page_without_a_last_line_feed_is_read_if_whole(server: BadServer, kind: str, end: str) -> None:
    """FIELD 23: a Content-Length that was met, or the last chunk, proves that nothing is missing."""
    body = text({"dcgm": "dcgm_plain", "vllm": "vllm_0"}[kind]).rstrip("\n").encode()
    server.answer = {
        "length": page(body),
        "chunked": raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunked(body)),
        "close": raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body),
    }[end]
    one = provider(server, kind)
    if end == "close":
        with pytest.raises(ProviderUnavailable, match="it ends in the middle of a line"):
            one.read()
    else:
        assert one.read()[0].health == "ok"


def test_path_and_query_of_the_url_are_requested(server: BadServer) -> None:
    server.answer = report("dcgm_plain")
    provider(server, path="/own?match=a,b").read()
    assert server.requests[0].startswith("GET /own?match=a,b HTTP/1.1")


@pytest.mark.parametrize(("path", "asked"), [("", "/prometheus/metrics"), ("/metrics", "/metrics")])
def test_trtllm_serve_is_asked_at_its_own_path(server: BadServer, path: str, asked: str) -> None:
    """trtllm-serve 1.1 answers JSON at /metrics; Dynamo passes the metrics on there."""
    server.answer = report("trtllm")
    provider(server, "trtllm", path).read()
    assert server.requests[0].startswith(f"GET {asked} HTTP/1.1")


def test_one_measurement_seen_thirty_times_is_one(server: BadServer, clock: StepClock) -> None:
    server.answer = report("dcgm_plain")
    one = provider(server, clock=clock)
    made, ages = set(), []
    for _ in range(30):
        rows = one.read()
        made |= {row.taken_at_s - row.age_s for row in rows}
        ages.append(max(row.age_s for row in rows))
        clock.now += 1.0
    assert made == {1000.0}
    assert ages == [float(second) for second in range(30)]


def test_the_period_of_an_exporter_is_learned(server: BadServer, clock: StepClock) -> None:
    one = provider(server, clock=clock)
    rows: list[GpuSample] = []
    for second in range(100):
        server.answer = page(f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{UUID="a"}} {second // 30}\n'.encode())
        rows = list(one.read())
        clock.now += 1.0
    assert (rows[0].period_s, rows[0].age_s) == (30.0, 9.0)


def test_stamps_of_an_exporter_are_respected(server: BadServer, clock: StepClock) -> None:
    server.answer = page(f'DCGM_FI_DEV_GPU_UTIL{{UUID="a"}} 5 {(WALL_S - 12.5) * 1000:.0f}\n'.encode())
    assert provider(server, clock=clock).read()[0].age_s == 12.5


@pytest.mark.parametrize("name", ["vllm_0", "vllm_1", "vllm_ray", "sglang", "trtllm", "tgi", "triton"])
def test_an_engine_is_new_at_every_reading(server: BadServer, clock: StepClock, name: str) -> None:
    server.answer = report(name)
    one = provider(server, name.partition("_")[0], clock=clock)
    for _ in range(3):
        (row,) = one.read()
        assert (row.kind, row.device, row.host) == ("engine", f"127.0.0.1:{server.port}", "")
        assert (row.taken_at_s, row.age_s) == (clock.now, 0.0)
        clock.now += 1.0


def test_openmetrics_is_read_as_such(server: BadServer) -> None:
    server.answer = page(text("vllm_openmetrics").encode(), "Content-Type: application/openmetrics-text")
    assert provider(server, "vllm").read()[0].running == 3


def test_page_without_known_metric_lists_its_names(server: BadServer) -> None:
    server.answer = page("".join(f"name_{n} 1\n" for n in range(12) for _ in range(2)).encode())
    listed = ", ".join(f"name_{n}" for n in range(10))
    for kind, whose in (("dcgm", "dcgm-exporter"), ("vllm", "vllm"), ("sglang", "sglang")):
        with pytest.raises(
            ProviderUnavailable, match=f"has no metric of {whose}; it has {listed} and 2 more"
        ):
            provider(server, kind).read()
    server.answer = page(b"# nothing\n")
    with pytest.raises(ProviderUnavailable, match="it has no metrics"):
        provider(server).read()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "answer",
    [
        page(b"", status="500 Oops"),
        page(b"<html>Log in\n"),
        page(b"\xff\xfe\n"),
        page(b"{", "Content-Type: application/openmetrics-text"),
        page(b"a 1\na", length=4),
        page(b"a" * (9 << 20)),
        raw(b""),
    ],
    ids=["500", "html", "no utf-8", "no eof", "half", "9 MiB", "nothing"],
)
def test_a_bad_answer_is_unavailable_and_names_the_source(server: BadServer, kind: str, answer: Any) -> None:
    server.answer = answer
    one = provider(server, kind)
    with pytest.raises(ProviderUnavailable, match=f"^{kind}:127.0.0.1:{server.port} ") as caught:
        one.read()
    assert "hunter2" not in str(caught.value) + repr(one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_web_page_is_called_one(server: BadServer, kind: str) -> None:
    server.answer = page(b"\n<!DOCTYPE html><title>Log in</title>\n")
    with pytest.raises(ProviderUnavailable, match="answers with a web page, not with metrics"):
        provider(server, kind).read()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_hangs_is_given_up_in_time(
    server: BadServer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    assert TIMEOUT_S < 3.0
    monkeypatch.setattr("autoglm_throttle.gpu.scrape.provider.TIMEOUT_S", 0.2)
    server.answer = lambda connection, _: (server.over.wait(60), None)[1]
    with pytest.raises(ProviderUnavailable, match=r"has not answered within 0\.2 s"):
        provider(server, kind, clock=time.monotonic).read()


def test_an_exporter_that_dies_and_comes_back(server: BadServer, clock: StepClock) -> None:
    server.answer = report("dcgm_plain")
    one = provider(server, clock=clock)
    one.read()
    server.down()
    with pytest.raises(ProviderUnavailable, match="cannot be reached"):
        one.read()
    server.up()
    clock.now += 60.0
    assert {row.age_s for row in one.read()} == {60.0}, "what it told before is not new"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200), kind=st.sampled_from(KINDS), openmetrics=st.booleans())
def test_any_bytes_are_rows_or_unavailable(
    server: BadServer, body: bytes, kind: str, openmetrics: bool
) -> None:
    name = b"DCGM_FI_DEV_GPU_UTIL" if kind == "dcgm" else b"vllm:num_requests_running"
    header = "application/openmetrics-text" if openmetrics else "text/plain"
    server.answer = page(name + body, f"Content-Type: {header}")
    try:
        rows = provider(server, kind).read()
    except ProviderUnavailable:
        return
    assert all(row.source for row in rows)


class TestPrometheus:
    @pytest.fixture
    def fleet(self, server: BadServer) -> PrometheusServer:
        fleet = PrometheusServer()
        server.answer = fleet
        return fleet

    def test_devices_of_many_hosts(
        self, server: BadServer, fleet: PrometheusServer, clock: StepClock
    ) -> None:
        for number in range(3):
            reported_by = [
                Series(one.name, {**one.labels, "Hostname": f"n{number}"}, *one[2:])
                for one in series("dcgm_plain")
            ]
            fleet.scraped(reported_by, age_s=4.0 + number, instance=f"10.0.0.{number}:9400", job="dcgm")
        rows = provider(server, "prometheus", path="/prom/", clock=clock).read()
        assert server.requests[0].startswith("GET /prom/api/v1/query?query=")
        assert {(row.host, row.index, row.age_s) for row in rows} == {
            (f"n{number}", index, 4.0 + number) for number in range(3) for index in (0, 1)
        }
        assert rows[0].utilization_pct == 97.0

    def test_a_dead_series_is_old_and_not_fresh(
        self, server: BadServer, fleet: PrometheusServer, clock: StepClock
    ) -> None:
        fleet.scraped(series("dcgm_plain"), age_s=2.0)
        one = provider(server, "prometheus", clock=clock)
        for _ in range(4):
            assert {row.taken_at_s - row.age_s for row in one.read()} == {998.0}
            fleet.now += 60.0
            clock.now += 60.0
        fleet.now += 60.0
        with pytest.raises(ProviderUnavailable, match="knows no series of dcgm-exporter"):
            one.read()

    def test_a_new_scrape_of_an_old_measurement_is_old(
        self, server: BadServer, fleet: PrometheusServer, clock: StepClock
    ) -> None:
        one = provider(server, "prometheus", clock=clock)
        for _ in range(4):
            fleet.series.clear()
            fleet.scraped(series("dcgm_plain"), age_s=1.0)
            rows = one.read()
            fleet.now += 15.0
            clock.now += 15.0
        assert {row.age_s for row in rows} == {46.0}

    def test_our_clock_does_not_matter(self, server: BadServer, fleet: PrometheusServer) -> None:
        fleet.scraped(series("dcgm_plain"), age_s=3.0)
        rows = provider(server, "prometheus", wall=lambda: 5.0).read()
        assert {row.age_s for row in rows} == {3.0}

    def test_the_selector_chooses(self, server: BadServer, fleet: PrometheusServer) -> None:
        for cluster in ("a", "b"):
            fleet.scraped(series("dcgm_plain"), cluster=cluster, instance=f"{cluster}:9400")
        rows = provider(server, "prometheus", selector='cluster="b"').read()
        assert len(rows) == 2
        assert all('cluster="b"' in query for query in fleet.queries)
        with pytest.raises(ProviderUnavailable, match=r'dcgm-exporter or of an engine with cluster="c"'):
            provider(server, "prometheus", selector='cluster="c"').read()

    def test_selector_rejected_by_server_is_misconfigured(
        self, server: BadServer, fleet: PrometheusServer
    ) -> None:
        with pytest.raises(ProviderMisconfigured, match=r"GPU_SELECTOR is rejected: .unexpected"):
            provider(server, "prometheus", selector="cluster=b").read()

    @pytest.mark.parametrize("kind", ["execution", "timeout", ""])
    def test_an_error_that_may_pass_is_unavailable(self, server: BadServer, kind: str) -> None:
        body = {"status": "error", "errorType": kind, "error": "x"}
        server.answer = page(json.dumps(body).encode(), status="503 Busy")
        with pytest.raises(ProviderUnavailable, match="answers 503"):
            provider(server, "prometheus").read()

    def test_devices_without_times_are_dated_by_changes(
        self, server: BadServer, fleet: PrometheusServer, clock: StepClock
    ) -> None:
        fleet.scraped(parse('DCGM_FI_DEV_MEM_COPY_UTIL{UUID="a"} 5\n'), instance="n1:9400")
        one = provider(server, "prometheus", clock=clock)
        (row,) = one.read()
        assert (row.host, row.age_s) == ("n1:9400", 0.0)
        clock.now += 5.0
        assert one.read()[0].age_s == 5.0


def test_page_with_too_many_devices_is_a_failure(server: BadServer) -> None:
    def devices(number: int) -> Any:
        return page("".join(f'DCGM_FI_DEV_GPU_UTIL{{UUID="{n}"}} 5\n' for n in range(number)).encode())

    server.answer = devices(MOST_DEVICES)
    assert len(provider(server).read()) == MOST_DEVICES
    server.answer = devices(MOST_DEVICES + 1)
    with pytest.raises(ProviderUnavailable, match="1025 devices; at most 1024"):
        provider(server).read()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_trtllm", (31, 8, 0.71, None)),
        ("triton", (None, 16, None, None)),
        ("trtllm", (24, 9, 0.63, None)),
        ("tgi", (32, 17, 0.75, 168_000)),
        ("sglang_disaggregated", (34, 45, 0.4, None)),
        ("vllm_ray", (21, 3, 0.31, 3300)),
    ],
)
def test_engines_of_a_prometheus_server(
    server: BadServer, clock: StepClock, name: str, expected: tuple[object, ...]
) -> None:
    """Each instance is an engine; the labels in the names of Triton's rows arrive as labels."""
    prometheus = PrometheusServer()
    prometheus.scraped(series(name), age_s=5.0, instance="10.0.0.5:8002", job="llm")
    prometheus.scraped(series("dcgm_plain"), instance="node-7:9400", job="dcgm")
    prometheus.scraped(series(name), age_s=9.0, instance="localhost:8002", job="llm")
    server.answer = prometheus
    rows = provider(server, "prometheus", clock=clock).read()
    assert [row.kind for row in rows] == ["gpu", "gpu", "engine", "engine"]
    for row, place, age_s in zip(rows[2:], ("10.0.0.5:8002", "localhost:8002"), (5.0, 9.0), strict=True):
        assert (row.running, row.queued, row.kv_used_ratio, row.tokens_total) == expected
        assert (row.device, row.host, row.age_s) == (place, place, age_s)


def test_a_prometheus_server_of_engines_alone_is_read(server: BadServer) -> None:
    prometheus = PrometheusServer()
    prometheus.scraped(series("vllm_1"), instance="gw:8000")
    server.answer = prometheus
    (row,) = provider(server, "prometheus").read()
    assert (row.kind, row.device, row.queued) == ("engine", "gw:8000", 4)
