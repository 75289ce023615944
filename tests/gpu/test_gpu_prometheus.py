"""Queries to a Prometheus server and the parsing of its responses."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.scrape.exposition import MalformedExpositionError, Series
from autoglm_throttle.gpu.scrape.prometheus import read, server_error, targets

LABELS = {"UUID": "GPU-a", "instance": "node-1:9400"}


def vector(*points: tuple[dict[str, str], object]) -> bytes:
    result = [{"metric": labels, "value": [1000.5, text]} for labels, text in points]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


def queries(selector: str = "") -> list[str]:
    return [parse_qs(urlsplit(target).query)["query"][0] for target in targets("", selector)]


def test_the_queries() -> None:
    values, times = queries()
    assert values.startswith('{__name__=~"DCGM_FI_DEV_BOARD_POWER_')
    assert "|DCGM_FI_DEV_GPU_UTIL|" in values
    assert "timestamp(DCGM_FI_DEV_FB_USED{})" in times
    values, times = queries('a="b"')
    assert values.endswith('",a="b"}')
    assert times.startswith(
        'timestamp(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{a="b"}) or timestamp(DCGM_FI_DEV_GPU_TEMP{a="b"}) or '
    )


@pytest.mark.parametrize("base", ["", "/"])
def test_the_address(base: str) -> None:
    for target in targets(base, 'b="c d"'):
        assert target.startswith("/api/v1/query?query=")
        assert "b%3D%22c+d%22%7D" in target
    assert all(target.startswith("/prom/api/v1/query?query=") for target in targets("/prom" + base))


def test_values_and_times_are_joined_by_labels() -> None:
    named = {"__name__": "DCGM_FI_DEV_GPU_UTIL", **LABELS}
    series, requested_s = read(
        vector((named, "97"), ({**named, "UUID": "GPU-b"}, "1")), vector((LABELS, "990.25"))
    )
    assert requested_s == 1000.5
    located = {"Hostname": "node-1:9400", "__name__": "DCGM_FI_DEV_GPU_UTIL", **LABELS}
    assert series[0] == Series("DCGM_FI_DEV_GPU_UTIL", located, 97.0, 990.25)
    assert series[1].at_s is None


def test_a_hostname_is_better_than_an_instance() -> None:
    for name in ("Hostname", "hostname"):
        (one,), _ = read(vector(({**LABELS, name: "node-1"}, "1")), vector())
        assert one.labels[name] == "node-1"
        assert one.labels.get("Hostname") in {None, "node-1"}
    (one,), _ = read(vector(({"UUID": "GPU-a"}, "1")), vector())
    assert one.labels == {"UUID": "GPU-a"}


def test_no_series() -> None:
    assert read(vector(), vector()) == ([], 0.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"{}",
        b'{"status": "success"}',
        b'{"status": "success", "data": {"resultType": "matrix", "result": []}}',
        b'{"data": {"resultType": "vector", "result": {}}, "x": 1}'.replace(b"{}", b"[1]"),
        b'{"data": {"resultType": "vector", "result": [{"metric": [], "value": [1, "1"]}]}}',
        b'{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1]}]}}',
        b'{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [NaN, "1"]}]}}',
        b'{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "x"]}]}}',
        b'{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1e999, "1"]}]}}',
        b'{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1'
        + b"0" * 400
        + b', "1"]}]}}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_malformed_response_is_rejected(body: bytes) -> None:
    with pytest.raises(MalformedExpositionError):
        read(body, vector())
    with pytest.raises(MalformedExpositionError):
        read(vector(), body)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_rejected(body: bytes) -> None:
    with contextlib.suppress(MalformedExpositionError):
        read(body, body)
    server_error(body)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "a", "1.5"])
JSON = LEAVES | st.lists(LEAVES, max_size=3) | st.dictionaries(st.sampled_from("ab"), LEAVES)


@given(JSON, JSON)
def test_any_result_is_read_or_rejected(labels: object, value: object) -> None:
    result = [{"metric": labels, "value": value}]
    body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
    with contextlib.suppress(MalformedExpositionError):
        read(body, body)


def test_server_error_text_is_reported() -> None:
    error = {"status": "error", "errorType": "bad_data", "error": "parse error"}
    assert server_error(json.dumps(error).encode()) == ("bad_data", "parse error")
    for body in (b"", b"nonsense", b"[]", b'{"status": "success"}', b"[" * 100_000):
        assert server_error(body) == ("", "")
