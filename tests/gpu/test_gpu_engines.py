"""Metrics of an inference engine as one row."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.scrape.engines import is_reachable, parse_engine, parse_instances
from autoglm_throttle.gpu.scrape.exposition import Series
from autoglm_throttle.types import GpuSample
from tests.gpu.exporter_texts import series


def report(name: str, place: str = "gw:8000") -> GpuSample:
    found = parse_engine(series(name), name.partition("_")[0], source="x:gw:8000", now=7.0, place=place)
    assert found is not None
    return found


def numbers(row: GpuSample) -> tuple[object, ...]:
    return (row.running, row.queued, row.kv_used_ratio, row.tokens_total, row.preemptions_total)


def test_data_parallel_engines_of_vllm_are_one_row() -> None:
    row = report("vllm_1")
    assert row == GpuSample(
        device="gw:8000",
        index=0,
        taken_at_s=7.0,
        source="x:gw:8000",
        host="gw:8000",
        kind="engine",
        name="meta-llama/Llama-3.1-8B-Instruct",
        running=59,
        queued=4,
        kv_used_ratio=0.8812,
        tokens_total=2 * (1_204_511 + 350_122),
        preemptions_total=4,
    )


def test_the_old_vllm() -> None:
    assert numbers(report("vllm_0")) == (7, 1, 0.125, 1_554_633, 2)


def test_vllm_under_ray() -> None:
    row = report("vllm_ray")
    assert numbers(row) == (21, 3, 0.31, 3300, 1)
    assert row.name == 'qwen, "two"'


def test_openmetrics_without_a_cache() -> None:
    assert numbers(report("vllm_openmetrics")) == (3, 2, None, 17, None)


def test_ranks_of_sglang_that_share_a_request_count_it_once() -> None:
    assert numbers(report("sglang")) == (44, 6, 0.77, 1320, 3)


def test_disaggregated_queues_of_sglang_add_up() -> None:
    """FIELD 22, SGLang 0.5.4: of 45 requests before their first token num_queue_reqs counts 3."""
    assert numbers(report("sglang_disaggregated")) == (34, 45, 0.4, None, None)


@pytest.mark.parametrize(
    ("name", "expected", "model"),
    [
        # trtllm-serve 1.1; names of the Gateway API's model server protocol (84436a96).
        ("trtllm", (24, 9, 0.63, None, None), "qwen3"),
        ("tgi", (32, 17, 0.75, 168_000, None), ""),  # TGI 3.3 (db931fcf)
        ("triton", (None, 16, None, None, None), ""),  # Triton 2.60 (e1db8a603), two models
        ("triton_trtllm", (31, 8, 0.71, None, None), ""),  # the same with its TensorRT-LLM backend
    ],
)
def test_engine_preset_reads_its_page(name: str, expected: tuple[object, ...], model: str) -> None:
    row = report(name)
    assert (numbers(row), row.name) == (expected, model)


def test_instance_without_a_number_is_no_row() -> None:
    lines = [
        Series("tgi_queue_size", {"instance": "a:80"}, math.nan),
        Series("tgi_queue_size", {}, 1.0),
        Series("tgi_queue_size", {"instance": "b:80"}, 2.0),
    ]
    assert [row.device for row, _, _ in parse_instances(lines, source="s", now=7.0)] == ["b:80"]


def test_trtllm_under_dynamo_has_another_prefix() -> None:
    lines = [Series("trtllm:num_requests_waiting", {"model_name": "m"}, 3.0)]
    found = parse_engine(lines, "trtllm", source="s", now=7.0, place="h:1")
    assert found is not None
    assert found.queued == 3


def test_tgi_without_a_cache_size_has_no_fill() -> None:
    for size in (0.0, math.nan):
        lines = [
            Series("tgi_batch_current_max_tokens", {}, 8.0),
            Series("tgi_batch_max_total_tokens", {}, size),
        ]
        found = parse_engine(lines, "tgi", source="s", now=7.0, place="h:1")
        assert found is not None
        assert found.kv_used_ratio is None


def test_the_newer_name_of_the_cache_wins_and_they_are_not_mixed() -> None:
    lines = [Series("vllm:gpu_cache_usage_perc", {}, 0.9), Series("vllm:kv_cache_usage_perc", {}, 0.2)]
    found = parse_engine(lines, "vllm", source="s", now=7.0, place="h:1")
    assert found is not None
    assert found.kv_used_ratio == 0.2


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_number_is_unknown(value: float) -> None:
    lines = [Series("vllm:num_requests_running", {}, value), Series("vllm:num_requests_waiting", {}, 1.0)]
    found = parse_engine(lines, "vllm", source="s", now=7.0, place="h:1")
    assert found is not None
    assert (found.running, found.queued) == (None, 1)
    assert parse_engine(lines[:1], "vllm", source="s", now=7.0, place="h:1") is None


def test_another_engine_is_not_taken_for_it() -> None:
    assert parse_engine(series("vllm_1"), "sglang", source="s", now=7.0, place="h:1") is None
    assert parse_engine(series("dcgm_plain"), "vllm", source="s", now=7.0, place="h:1") is None
    prefixed = [Series("my_vllm:num_requests_running", {}, 1.0)]
    assert parse_engine(prefixed, "vllm", source="s", now=7.0, place="h:1") is None


def test_several_models_have_no_one_name() -> None:
    lines = [Series("vllm:num_requests_running", {"model_name": name}, 1.0) for name in ("a", "b")]
    found = parse_engine(lines, "vllm", source="s", now=7.0, place="h:1")
    assert found is not None
    assert (found.name, found.running) == ("", 2)


@pytest.mark.parametrize(
    ("place", "here"),
    [
        ("127.0.0.1:8000", True),
        ("localhost:1", True),
        ("[::1]:8000#2", True),
        ("127.0.0.1.example.org:1", False),
        ("h:1", False),
    ],
)
def test_an_engine_on_this_host_has_no_other(place: str, here: bool) -> None:
    assert is_reachable(place) is here
    assert report("vllm_0", place).host == ("" if here else place)


@given(st.permutations(series("sglang")))
def test_order_of_lines_does_not_matter(lines: list[Series]) -> None:
    found = parse_engine(lines, "sglang", source="s", now=7.0, place="h:1")
    assert found is not None
    assert numbers(found) == (44, 6, 0.77, 1320, 3)


def test_a_long_name_of_a_model_is_cut() -> None:
    line = Series("vllm:num_requests_running", {"model_name": "x" * 999}, 1.0)
    found = parse_engine([line], "vllm", source="vllm", now=1.0, place="gw:8000")
    assert found is not None
    assert len(found.name) == 255
