"""The sources of telemetry as a setting: what is read, and that no password of theirs is ever shown."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings import PREFIX, ConfigError, Settings
from autoglm_throttle.settings.groups.gpu import ScrapeUrl, parse_items, shown_item, split_items

PASSWORD = "hunter2-hunter2"
TOKEN = "tok-0123456789"
WITH_LOGIN = f"vllm:http://me:{PASSWORD}@h:8000/metrics?token={TOKEN}"

KINDS = st.sampled_from(["dcgm", "vllm", "sglang", "trtllm", "tgi", "triton", "prometheus"])
HOSTS = st.sampled_from(["h", "10.0.0.1", "[::1]", "engine.example.org"])
TAILS = st.text("abc,:/=&@?% ", max_size=8).map(lambda text: "/" + text)


def test_no_password_is_shown() -> None:
    settings = Settings(gpu=["nvml", WITH_LOGIN])
    assert settings.gpu.gpu == ("nvml", WITH_LOGIN)
    for text in (repr(settings), str(settings), settings.text_of("gpu")):
        assert "me:********@h:8000/metrics?token=********" in text
        assert PASSWORD not in text
        assert TOKEN not in text
    assert PASSWORD not in repr(parse_items(settings.gpu.gpu))
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    "item",
    [
        WITH_LOGIN.replace(":8000", ":80x"),
        WITH_LOGIN.replace("http", "ftp"),
        WITH_LOGIN.replace(PASSWORD, PASSWORD + "/#?"),
        WITH_LOGIN + "," + WITH_LOGIN,
        WITH_LOGIN.replace("vllm", "vlmm"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_no_password_is_shown_in_a_complaint(item: str, listed: bool) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(gpu=[item] if listed else item)
    (problem,) = caught.value.problems
    assert problem.variable == "gpu"
    assert "dcgm:URL" in problem.message
    assert PASSWORD not in str(problem)
    assert TOKEN not in str(problem)


def test_gpu_faults_are_one_entry_with_variable_and_formats() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({PREFIX + "GPU": "amd,nvml,nvml,vllm:h,dcgm"})
    (problem,) = caught.value.problems
    assert problem.variable == "AUTOGLM_THROTTLE_GPU"
    assert "sglang:URL, trtllm:URL, tgi:URL, triton:URL, fake:FILE, or none alone" in str(problem)
    for fault in (
        "'amd'",
        "'nvml' is listed twice",
        "'vllm:h': a URL begins",
        "'dcgm': after dcgm comes a URL",
    ):
        assert fault in problem.hint


@given(st.lists(st.tuples(KINDS, HOSTS, TAILS), min_size=1, max_size=4))
def test_commas_of_urls_do_not_cut_them(parts: list[tuple[str, str, str]]) -> None:
    items = [f"{kind}:http://{host}{tail}".strip() for kind, host, tail in parts]
    assert split_items(" , ".join(items)) == items


@given(st.text(max_size=30))
def test_any_text_is_read_or_rejected_as_a_value(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_items(split_items(text))


def test_a_url_is_taken_apart() -> None:
    (item,) = parse_items(["Prometheus: https://me:p%40ss@[::1]/prom?a=1 ".replace(" ", "")])
    url = ScrapeUrl(True, "::1", 443, "/prom", "a=1", "me", "p@ss")
    assert item == ("prometheus", url, "")
    assert url.place == "[::1]:443"


def test_a_file_is_shown_as_it_is() -> None:
    assert shown_item("fake:/a@b/x.csv") == "fake:/a@b/x.csv"
