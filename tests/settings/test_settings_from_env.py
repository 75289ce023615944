"""Settings from the environment and a .env file."""

from __future__ import annotations

import logging
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from autoglm_throttle.settings import (
    PREFIX,
    ConfigError,
    ErrorStyle,
    HeaderStyle,
    HeaderTrust,
    MetricsExport,
    Problem,
    Settings,
    SettingSource,
    settings_table,
)
from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.types import (
    AggregateMode,
    BorrowMode,
    BreakerMode,
    MissingTelemetryMode,
    Policy,
    Priority,
    Signal,
    SlowCallMode,
    StoreFailureMode,
    TripRule,
    UserLimit,
    WebSocketMode,
)


def texts_of(values: Settings) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the environment and the arguments in code that give these settings, all of them texts."""
    texts = {
        known: known.field_type.text(values.value_of(name))
        for name, known in settings_table().items()
        if values.value_of(name) != known.default
    }
    environ = {known.variable: text for known, text in texts.items() if not known.file_only}
    return environ, {known.name: text for known, text in texts.items() if known.file_only}


def problems_of(environ: Mapping[str, str], env_file: Path | None = None) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ, env_file)
    return caught.value.problems


LIMITS = st.lists(
    st.builds(
        lambda limit, window_s: UserLimit(f"user-{window_s}s", limit, window_s),
        st.integers(1, 16_777_215),
        st.integers(1, 86_400),
    ),
    max_size=4,
    unique_by=lambda limit: limit.window_s,
).map(tuple)
PATHS = st.text(string.ascii_letters + string.digits + "-_.~/ü%:", min_size=1, max_size=20).map("/{}".format)


@st.composite
def tier_tables(draw: st.DrawFn) -> tuple[tuple[float, float], ...]:
    edges = sorted(draw(st.sets(st.floats(0, 100), min_size=1, max_size=6)))
    factors = draw(st.sets(st.floats(0, 1), min_size=len(edges), max_size=len(edges)))
    return tuple(zip(edges, sorted(factors, reverse=True), strict=True))


GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "policy": st.sampled_from(Policy),
        "signal": st.sampled_from(Signal),
        "dry_run": st.booleans(),
        "slo_s": st.floats(0.001, 86_400),
        "latency_budget": st.floats(0, 1, exclude_min=True),
        "inflight_max": st.integers(0, 1_000_000),
        "queue_max": st.integers(0, 1_000_000),
        "min_share": st.floats(0, 0.2),
        "websockets": st.sampled_from(WebSocketMode),
        "deadline_header": st.sampled_from(["x-deadline", "request-timeout"]),
        "gpu_memory_target": st.floats(0.1, 1),
        "gpu_queue_target": st.integers(1, 100_000),
        "gpu_kv_target": st.floats(0.01, 1),
        "sample_adaptive": st.booleans(),
        "gpu_pressure_terms": st.sampled_from([("queue", "kv"), ("latency", "memory"), ()]),
        "rate_high_rps": st.floats(0.001, 1e6),
        "burst_s": st.floats(0.001, 3600),
        "borrow": st.sampled_from(BorrowMode),
        "workers": st.integers(1, 10_000),
        "tiers": tier_tables(),
        "tier_recovery_step": st.floats(0, 1, exclude_min=True),
        "user_limit": LIMITS,
        "user_limit_high": LIMITS,
        "concurrency_per_user": st.integers(0, 1000),
        "max_users": st.integers(100, 10_000_000),
        "identity": st.sampled_from(["address", "bearer", "header:x-api-key", "my.module:identify"]),
        "key_secret": st.text(string.printable.strip(), min_size=16, max_size=40),
        "trusted_proxies": st.lists(st.ip_addresses().map(str), max_size=4).map(tuple),
        "priority_default": st.sampled_from(Priority),
        "priority_header_trust": st.sampled_from(HeaderTrust),
        "exempt_paths": st.lists(PATHS, max_size=4),
        "headers": st.sampled_from(HeaderStyle),
        "errors": st.sampled_from(ErrorStyle),
        "retry_jitter": st.floats(0, 1),
        "gpu": st.sampled_from(
            ["auto", "nvml", "none", "fake:/tmp/Trace A.csv", "auto,vllm:http://me:pa%2Fss@h:8000/m?a=1,b"]
        ),
        "gpu_selector": st.sampled_from(["", 'cluster="a,b",Hostname=~"gpu-.*"']),
        "gpu_devices": st.lists(st.sampled_from(["0", "3", "GPU-1f", "MIG-GPU-1f/1/0"]), max_size=3),
        "gpu_aggregate": st.sampled_from(AggregateMode),
        "gpu_unknown": st.sampled_from(MissingTelemetryMode),
        "gpu_stale_after_s": st.floats(2, 10),
        "breaker_open_s": st.floats(0.001, 86_400),
        "breaker_trip": st.sets(st.sampled_from([TripRule.CONSECUTIVE, TripRule.FAILURE_RATE]), min_size=1),
        "breaker_failure_rate": st.floats(0, 1, exclude_min=True),
        "breaker_ramp": st.sets(st.floats(0, 1, exclude_min=True, exclude_max=True)).map(sorted),
        "breaker_slow_call_s": st.floats(0.001, 86_400),
        "breaker_slow_is": st.sampled_from(SlowCallMode),
        "breaker_mode": st.sampled_from(BreakerMode),
        "degrade_shed_at": st.floats(0.1, 0.89),
        "degrade_max_stale_s": st.floats(0.001, 31_536_000),
        "record_path": st.sampled_from([Path("/tmp/a b.jsonl.gz"), Path("traffic.jsonl")]),
        "record_sample": st.floats(0, 1),
        "record_max_bytes": st.integers(4096, 2**40),
        "record_body": st.sampled_from(RecordBody),
        "record_headers": st.lists(st.sampled_from(["x-model", "x-trace"]), max_size=3),
        "record_mask_paths": st.lists(st.sampled_from(["/users/{id}", "/reset/*"]), max_size=3),
        "metrics": st.sampled_from(MetricsExport),
        "log_refused_every_s": st.floats(0.1, 86_400),
        "alert_webhook_url": st.sampled_from(["http://h:9093/api/v2/alerts", "https://me:pa%2Fss@h/x"]),
        "alert_memory_ratio": st.floats(0.01, 1),
        "redis_url": st.sampled_from(["redis://localhost:6379/0", "rediss://me:pa%2Fss@h", "unix:///a"]),
        "redis_on_error": st.sampled_from(StoreFailureMode),
        "service": st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=60),
        "redis_deadline_s": st.floats(0.005, 0.9),
        "redis_probe_s": st.floats(0.1, 3600),
        "refused_cache": st.integers(0, 10_000_000),
        "fleet_host": st.sampled_from(["gpu-7.example.org", "h"]),
    },
)


@given(GIVEN)
@settings(max_examples=3 * settings().max_examples)
def test_texts_of_settings_are_read_back(values: dict[str, Any]) -> None:
    if values.get("signal") is Signal.PRESSURE:
        values.pop("gpu_pressure_terms", None)  # none of them would be a contradiction
    if "breaker_failure_rate" in values:
        values.pop("breaker_trip", None)  # without the rate's rule it would be another one
    made = Settings(**values)
    environ, in_code = texts_of(made)
    assert Settings.from_env(environ, **in_code) == made


def test_names_are_matched_without_case_and_empty_is_not_set() -> None:
    read = Settings.from_env(
        {
            "autoglm_throttle_workers": "2",
            "AUTOGLM_THROTTLE_GPU": "",
            "Autoglm_Throttle_Burst_S": " ",
            "GPU": "x",
        }
    )
    assert read == Settings(workers=2)


def test_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_WORKERS", "4")
    assert Settings.from_env().rates.workers == 4
    assert Settings.from_env({}).rates.workers == 1


def test_one_name_in_two_cases_has_one_value() -> None:
    both = {"AUTOGLM_THROTTLE_WORKERS": "2", "autoglm_throttle_workers": "3"}
    assert [problem.variable for problem in problems_of(both)] == ["AUTOGLM_THROTTLE_WORKERS"]
    assert Settings.from_env(dict.fromkeys(both, "2")).rates.workers == 2


def test_code_wins_over_environment_over_env_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "# shared with others\nOTHER=1\nAUTOGLM_THROTTLE_WORKERS=2\nAUTOGLM_THROTTLE_BURST_S=2\n"
        "export AUTOGLM_THROTTLE_GPU='none'\nAUTOGLM_THROTTLE_METRICS=\n"
    )
    environ = {"AUTOGLM_THROTTLE_WORKERS": "3", "AUTOGLM_THROTTLE_BURST_S": "3"}
    read = Settings.from_env(environ, file, workers=4)
    assert (read.rates.workers, read.rates.burst_s, read.gpu.gpu) == (4, 3.0, ("none",))
    sources = [read.source_of(name) for name in ("workers", "burst_s", "gpu", "metrics")]
    assert sources == [SettingSource.CODE, SettingSource.ENV, SettingSource.ENV_FILE, SettingSource.DEFAULT]


def test_env_file_is_read_only_where_it_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page of settings says: by uvicorn, or as an argument; none is looked for."""
    file = tmp_path / ".env"
    file.write_text("AUTOGLM_THROTTLE_WORKERS=7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOGLM_THROTTLE_WORKERS", "")  # so that it is gone after the test
    monkeypatch.delenv("AUTOGLM_THROTTLE_WORKERS")
    assert Settings.from_env().rates.workers == 1
    assert Settings.from_env(env_file=".env").rates.workers == 7
    uvicorn.Config("app:app", env_file=".env")
    assert Settings.from_env().rates.workers == 7


def test_env_file_that_is_no_text_is_a_problem(tmp_path: Path) -> None:
    assert problems_of({}, tmp_path / "no.env")[0].variable == "env_file"
    assert problems_of({}, tmp_path)[0].variable == "env_file"
    (tmp_path / "bad.env").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in problems_of({}, tmp_path / "bad.env")[0].message


def test_problems_of_an_env_file_name_it(tmp_path: Path) -> None:
    file = tmp_path / "prod.env"
    file.write_text("AUTOGLM_THROTTLE_WORKERS=0\nAUTOGLM_THROTTLE_WORKER=1\nAUTOGLM_THROTTLE_BARE\n")
    assert [problem.variable for problem in problems_of({}, file)] == [
        "AUTOGLM_THROTTLE_WORKERS in prod.env",
        "AUTOGLM_THROTTLE_WORKER in prod.env",
    ]


def test_problems_are_reported_in_page_order() -> None:
    environ = {
        PREFIX + "GPU": "cuda",
        PREFIX + "NOPE": "1",
        PREFIX + "WORKERS": "many",
        PREFIX + "USER_LIMIT": "0/second",
        PREFIX + "TRUSTED_PROXIES": "*",
    }
    reported = [problem.variable.removeprefix(PREFIX) for problem in problems_of(environ)]
    assert reported == ["WORKERS", "USER_LIMIT", "TRUSTED_PROXIES", "GPU", "NOPE"]


def test_foreign_names_are_left_alone() -> None:
    assert (
        Settings.from_env({"AUTOGLM_WORKERS": "x", "THROTTLE_GPU": "x", "XUTOGLM_THROTTLE_NOPE": "x"})
        == Settings()
    )


def test_variable_for_routes_names_the_config_file() -> None:
    assert problems_of({PREFIX + "ROUTES": "/x"})[0].hint == "routes stand in CONFIG_FILE or in code"


def test_unknown_names_are_warnings_with_unknown_env_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        read = Settings.from_env({PREFIX + "FUTURE": "1", PREFIX + "UNKNOWN_ENV": "Warn"})
    assert [problem.variable for problem in read.ignored] == [PREFIX + "FUTURE"]
    assert "AUTOGLM_THROTTLE_FUTURE" in caplog.text


def test_invalid_unknown_env_ignores_no_problem() -> None:
    reported = problems_of({PREFIX + "FUTURE": "1", PREFIX + "UNKNOWN_ENV": "perhaps"})
    assert [problem.variable for problem in reported] == [PREFIX + "UNKNOWN_ENV", PREFIX + "FUTURE"]


def test_values_in_messages_are_short_and_printable() -> None:
    nasty = "x\x1b[31m\n" + "y" * 200
    reported = problems_of(
        {
            PREFIX + "GPU": nasty,
            PREFIX + "IDENTITY": "http://me:hunter2@host/?a@b",
            "AUTOGLM_THROTTLE_\x07": "1",
        }
    )
    text = "".join(map(str, reported))
    assert text.isprintable()
    assert "\\x1b[31m\\n" in text
    assert "y" * 61 not in text
    assert "hunter2" not in text


def test_bytes_that_are_not_utf8_are_problems() -> None:
    reported = problems_of({PREFIX + "GPU": "\udcff", PREFIX + "KEY_SECRET": "\udcff" * 16})
    assert str(reported[1]).encode()
    assert reported[0].hint == "it is not UTF-8"


SECRET = "hunter2-hunter2-hunter2"


@pytest.mark.parametrize(
    "values",
    [
        {"key_secret": SECRET, "workers": 0},
        {"key_secret": SECRET.encode()},
        {"key_secret": SECRET, "gpu_required": True, "gpu": "none"},
        {"plans": {"gold": {"members": [SECRET]}}},
        {"plans": {"gold": {"members": SECRET}}},
        {"key_secrets": SECRET},
        {"workers": f"redis://user:{SECRET}@host"},
    ],
)
def test_secret_is_never_shown(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    error = caught.value
    assert SECRET not in str(error) + repr(error) + repr(error.__context__) + repr(error.__cause__)
