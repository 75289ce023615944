"""Values of every setting that are rejected, alone and together, and texts that are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.settings import PREFIX, ConfigError, Settings, settings_table
from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.types import (
    BreakerMode,
    Policy,
    SlowCallMode,
    StoreFailureMode,
    TooManyRequestsMode,
    TripRule,
    WebSocketMode,
)

BAD: dict[str, list[object]] = {
    "policy": ["clever", 1],
    "signal": ["load", 1],
    "dry_run": ["maybe", 1],
    "rate_high_rps": ["0", "-1", "fast", "1000001", True, None, "5 apples"],
    "rate_mid_rps": ["0.0001"],
    "rate_low_rps": ["nan", "inf", [1]],
    "burst_s": ["0", "2h"],
    "borrow": ["up"],
    "workers": ["0", "10001", "1.5", "two", 1.0, True, "-1", "9" * 30],
    "slo_s": ["0", "2 fortnights", "86401"],
    "slo_ttft_s": ["0", "soon", "86401"],
    "slo_ttft_high_s": ["0"],
    "slo_ttft_mid_s": ["-1"],
    "slo_ttft_low_s": ["86401"],
    "latency_budget": ["0", "1.1", "25"],
    "inflight_max": ["-1", "1000001", "1.5"],
    "queue_max": ["-1", "1000001"],
    "min_share": ["0.21", "-0.01", "3"],
    "websockets": ["seat"],
    "tiers": [
        "85",
        "85:70",
        "90:0.4,85:0.7",
        "85:0.4,90:0.7",
        "85:0.7,85:0.4",
        "85:0.7,90:0.7",
        "101:0.5",
        "85:x",
        "85:0.7,",
        5,
        [85, 0.7],
        [(85,)],
        {"85": 0.7},
        [],
        [(edge, 1 - edge / 100) for edge in range(21)],
    ],
    "tier_samples": ["0", "101"],
    "tier_release_samples": ["0"],
    "tier_release_margin_pct": ["-1", "101"],
    "tier_recovery_step": ["0", "1.1"],
    "nginx_flags_dir": ["run/flags", "/run/a b", "/run/$tier", "/" + "x" * 201, 5],
    "user_limit": ["0/second", "1/s;2/s", "fast", 5, [5], [None], "1/s;2/2s;3/3s;4/4s;5/5s"],
    "user_limit_high": ["-5/s"],
    "user_limit_mid": ["16777216/s"],
    "user_limit_low": ["5/s;"],
    "concurrency_per_user": ["-1", "1001"],
    "max_users": ["99", "10000001"],
    "address_factor": ["0.5"],
    "redis_url": [
        "localhost",
        "http://h:6379",
        "redis://h:0x",
        5,
        b"redis://h",
        "redis://h\nx",
        "redis://" + "h" * 2000,
    ],
    "redis_on_error": ["open", 1],
    "service": ["a:b", "a b", "{a}", "", "x" * 61, 5, "\u00e9"],
    "redis_prefix": ["a:b", "*", "{a}", "a b", "", "x" * 61, None],
    "redis_partitions": ["0", "257"],
    "redis_deadline_s": ["0.004", "11", None],
    "redis_connect_s": ["0.004", "61"],
    "redis_read_s": ["0.005", "61"],
    "redis_failures": ["0", "101"],
    "redis_probe_s": ["0.09", "2h"],
    "refused_cache": ["-1", "10000001"],
    "fleet": ["maybe", 2],
    "fleet_gpu": ["maybe"],
    "fleet_host": ["a b", "a/b", "h" * 254, 5],
    "identity": ["", "ip", "header:", "header:x y", "a-b:c", "module:", ":f", 5, "header:" + "x" * 65],
    "key_secret": ["short", "fifteen-bytes..", 5],
    "trusted_proxies": ["*", "10.0.0.1/8", "10.0.0.0/33", "example.org", "10.0.0.1,,10.0.0.2", 5, b"x", [5]],
    "ipv6_prefix": ["31", "129"],
    "priority_default": ["urgent", 1],
    "priority_header": ["x priority", "", "x:y", 5],
    "priority_header_trust": ["all"],
    "deadline_header": ["x deadline", "x:y", "d" * 65, 5],
    "exempt_paths": ["/health*", "health", "/a?b", "/a b", "/" + "x" * 1000, ["/a\nb"], {"/a": 1}],
    "headers": ["github"],
    "errors": ["rfc9457"],
    "retry_after_max_s": ["0.5", "0"],
    "retry_jitter": ["10", "101%", "-0.1"],
    "gpu": [
        "amd",
        "fake:",
        "nvml,none",
        "",
        5,
        b"auto",
        {"auto": 1},
        [],
        [5],
        "fake:\x1b",
        "auto,nvml",
        "auto,fake:x",
        "nvml,nvml",
        "nvml:0",
        "vllm",
        "vllm:",
        "vllm:127.0.0.1:8000",
        "vllm:ftp://h",
        "vllm:http://",
        "vllm:http://:80/metrics",
        "vllm:http://h:0",
        "vllm:http://h:x",
        "vllm:http://h/a b",
        "vllm:http://h/#a",
        "vllm:http://[::1",
        "dcgm:http://h,dcgm:http://h:80/",
        "dcgm:http://h,dcgm:http://me:pw@H",
    ],
    "gpu_devices": ["gpu0", "-1", "GPU-", True, [True], [1.5]],
    "gpu_selector": ["cluster=a", 'a="b', 'a="b" c="d"', '="b"', "a='b\"", 'a="b",,', 'a=="b"', 5, 'a="\n"'],
    "gpu_required": ["maybe", 1],
    "sample_interval_s": ["0.1", "100ms", "61"],
    "sample_adaptive": ["perhaps", 2],
    "sample_interval_max_s": ["0.1", "601"],
    "gpu_aggregate": ["median"],
    "gpu_unknown": ["shut"],
    "gpu_stale_after_s": ["0.1", "soon"],
    "gpu_blind_after_s": ["0.1"],
    "gpu_memory_target": ["0.09", "92", "1.01"],
    "gpu_queue_target": ["0", "2.5", "100001"],
    "gpu_kv_target": ["0", "80", "1.01"],
    "gpu_pressure_terms": ["memory,lines", "kvs", "memory,", 5, [5], {"memory": 1}],
    "tokens_limit": ["0/minute", "many", 5],
    "tokens_input_limit": ["1/s;2/s;3/s", "-1/s"],
    "tokens_output_limit": ["16777216/s", [5]],
    "tokens_routes": ["/v1/*", "v1", 5],
    "tokens_body_max_bytes": ["1023", "16777217", "1.5"],
    "tokens_per_media": ["-1", "1000001"],
    "tokens_overrun": ["end", 1],
    "tokens_reserve": ["all", 1],
    "tokens_quantile": ["0.009", "80", "1.01"],
    "tokens_default_output": ["-1", "10000001"],
    "quotas": ["perhaps", 1],
    "precisions": ["fp16,-", "a b", 5, [5], {"fp16": 1}, "x" * 33],
    "compute_priority": ["urgent", 1],
    "gpu_memory_ratio": ["0.009", "70", "1.01"],
    "gpu_memory_ratio_low": ["0.009", "50", "1.01"],
    "breaker_failures": ["0", "10001", "2.5", None],
    "breaker_open_s": ["0", "-1", "inf", "nan", "2d", None],
    "breaker_open_max_s": ["0", "nan"],
    "breaker_backoff": ["0.99", "101", "2x"],
    "breaker_half_open_max": ["0", "10001"],
    "breaker_success_threshold": ["0", "-1"],
    "breaker_timeout_s": ["0", "inf"],
    "breaker_trial_lease_s": ["0", "2 fortnights"],
    "breaker_trip": [
        "often",
        "none",
        "consecutive,",
        [],
        5,
        [5],
        {"consecutive": 1},
        b"consecutive",
    ],
    "breaker_failure_window_s": ["0"],
    "breaker_window": ["0", "100001"],
    "breaker_window_s": ["0", "inf"],
    "breaker_min_calls": ["0", "1.5"],
    "breaker_failure_rate": ["0", "50", "1.01"],
    "breaker_slow_rate": ["0", "-0.1", "101%"],
    "breaker_slow_call_s": ["0"],
    "breaker_slow_is": ["success"],
    "breaker_ramp": ["0", "0.5,0.1", "0.1,0.1", "0.5,1", "10", "half", 0.5, [None], {"0.5": 1}, "0.1,"],
    "breaker_ramp_step_s": ["0"],
    "breaker_first_item_s": ["0"],
    "breaker_stream_idle_s": ["0"],
    "breaker_stream_settle": ["start"],
    "breaker_max_in_flight": ["-1", "1000001"],
    "breaker_on_429": ["failure"],
    "breaker_mode": ["off"],
    "breaker_shared": ["maybe"],
    "degrade_shed_at": ["0", "80", "1.01"],
    "degrade_stale_at": ["0.009", "90"],
    "degrade_static_at": ["95", "2"],
    "degrade_fallback_timeout_s": ["0", "3601"],
    "degrade_max_stale_s": ["0", "400d", None],
    "record_path": ["a\0b", "", 5, "/tmp", "traffic.gz", "traffic.json"],
    "record_sample": ["-0.1", "50", "1.01", None],
    "record_max_bytes": ["4095", "2TiB", "1.5", None],
    "record_max_s": ["0", "0.9", "400d", "nan"],
    "record_body": ["head", 1],
    "record_headers": ["a b", "authorization", "Proxy-Authorization", "COOKIE", "set-cookie", "api-key", 5],
    "record_query": ["a b", "a=b", "", "a&b", "a;b", 5, [5]],
    "record_mask_paths": [
        "/users",
        "users/{id}",
        "/*/a",
        "/a b/{id}",
        "/a*/{id}",
        "/{id",
        "/a?{b}",
        5,
        "/\n/*",
    ],
    "metrics": ["otel"],
    "log_refused_every_s": ["0"],
    "trace_wait": ["maybe"],
    "status_token": ["short", "fifteen-bytes..", 5],
    "alerts": ["perhaps", 1],
    "alert_webhook_url": ["ftp://h/", "alertmanager:9093", "http://", "http://a b/", "http://[", 5],
    "alert_gpu_pct": ["0", "101"],
    "alert_gpu_for_s": ["-1", "2d"],
    "alert_memory_ratio": ["0", "1.1", "90"],
    "alert_p95_s": ["0.004", "61"],
    "alert_p95_for_s": ["-1", "2d"],
    "alert_z_rules": ["perhaps"],
    "alert_z_plain": ["perhaps"],
    "config_file": ["a\0b", 5],
    "unknown_env": ["ignore"],
    "inflight_start": ["0", "1000001"],
    "inflight_floor": ["0", "10001"],
    "wait_budget": ["0", "1.1"],
    "slot_idle_s": ["0.04", "3601"],
    "body_timeout_s": ["0.09", "2d"],
    "paused_max": ["0", "1000001"],
    "fairness": ["vtc", 1],
    "period_s": ["0.04", "61"],
    "period_completions": ["0", "1001"],
    "adaptive_headroom": ["0.99", "10.1"],
    "adaptive_release_samples": ["0", "1001"],
    "reserve_mid": ["-0.1", "0.876"],
    "reserve_low": ["0.876", "60"],
    "redis_in_flight": ["0", "65"],
    "redis_batch_keys": ["7", "4097"],
    "redis_queue": ["0", "1000001"],
    "refused_cache_s": ["0", "61"],
    "fleet_lease_s": ["0.09", "61"],
    "fleet_heartbeat_s": ["0.4", "301"],
    "gpu_forget_s": ["0.5", "86401"],
    "verdict_power_stalled": ["-0.1", "30"],
    "verdict_power_underfed": ["1.1"],
    "verdict_sm_stalled": ["5"],
    "verdict_sm_underfed": ["-1"],
    "verdict_stalled_s": ["9", "3601"],
    "breaker_store_deadline_s": ["0.004", "11"],
    "breaker_max_names": ["0", "1000001"],
    "degrade_margin": ["-0.01", "5"],
    "degrade_samples": ["0", "101"],
    "degrade_load_stale_s": ["0.09", "inf"],
    "degrade_cache_entries": ["0", "10000001"],
    "degrade_cache_body_bytes": ["0", "2GiB", "1.5", "0.7kib", "1 MB/s", 1.5],
}


def test_every_setting_has_a_bad_value() -> None:
    assert set(BAD) == set(settings_table())


def test_one_bad_value_for_each_setting_all_in_page_order() -> None:
    table = settings_table()
    texts: dict[str, Any] = {name: next(v for v in BAD[name] if isinstance(v, str) and v) for name in table}
    environ = {known.variable: texts[name] for name, known in table.items() if not known.file_only}
    in_code = {name: texts[name] for name, known in table.items() if known.file_only}
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ, **in_code)
    problems = caught.value.problems
    assert [problem.variable for problem in problems] == [known.variable for known in table.values()]
    for problem, known in zip(problems, table.values(), strict=True):
        assert known.field_type.allowed in problem.message
        assert problem.hint
        assert ("not '" in problem.message) is not known.field_type.hidden


@pytest.mark.parametrize("name", ["slo_ttft_s", "slo_ttft_high_s", "slo_ttft_mid_s", "slo_ttft_low_s"])
def test_objective_of_the_first_token_is_within_that_of_the_response(name: str) -> None:
    given: dict[str, Any] = {name: 3}
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({}, slo_s=2, **given)
    (problem,) = caught.value.problems
    assert (problem.variable, problem.message) == (name, "must be at most SLO_S, 2 s")
    assert not Settings.from_env({}, **given).concurrency.slo_s


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in BAD.items() for bad in values])
def test_bad_value_is_rejected_alone(name: str, bad: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({}, **{name: bad})
    assert [problem.variable for problem in caught.value.problems] == [name]


@pytest.mark.parametrize(
    ("name", "bad", "hint"),
    [
        ("retry_jitter", "10", "for 10 percent write 10%"),
        ("retry_jitter", 10, "for 10 percent write 10%"),
        ("min_share", "3", "for 3 percent write 3%"),
        ("gpu_pressure_terms", "memory,kvs", "'kvs': not allowed"),
        ("tiers", "85:70", "for 70 percent write 70%"),
        ("tiers", "90:0.4,85:0.7", "edge 85 does not rise above 90"),
        ("tiers", "85:0.4,90:0.7", "factor 0.7 does not fall below 0.4"),
        ("exempt_paths", "/health*", "would also exempt /healthcare"),
        ("trusted_proxies", "10.0.0.1/8", "write 10.0.0.0/8 or 10.0.0.1"),
        ("trusted_proxies", "*", "a trusted peer can take any identity"),
        ("key_secret", "short", "this one has 5"),
        ("user_limit", "0.5/second", "say 30/minute"),
        ("sample_interval_s", "1 fortnight", "us, ms, s, m, min, h, d"),
        ("gpu", "amd", "'amd': not a known source"),
        ("gpu", "amd,dcgm,nvml,none,nvml", "'dcgm': after dcgm comes a URL"),
        ("gpu", "amd,dcgm,nvml,none,nvml", "'nvml' is listed twice"),
        (
            "gpu",
            "auto,nvml,none",
            "none cannot be joined with other sources; "
            "auto can be joined with dcgm, prometheus, vllm, sglang, trtllm, tgi, triton only",
        ),
        ("gpu", "vllm:http://u:pa/ss@h", "in a password are written %2F"),
        ("breaker_failure_rate", "50", "for 50 percent write 50%"),
        ("breaker_trip", "failure_rate,often", "'often': not one of them"),
        ("breaker_trip", "none", "has the mode disabled or metrics_only"),
        ("breaker_ramp", "50%,10%", "0.1 does not rise above 0.5"),
        ("breaker_ramp", "0.5,1", "omit the last step"),
        ("breaker_ramp", "0,0.5", "'0': not between 0 and 1"),
        ("breaker_ramp", "10,50", "for 10 percent write 10%"),
        ("degrade_shed_at", 80, "for 80 percent write 80%"),
        ("record_headers", "x-real-ip", "identifies the caller"),
        ("record_headers", "X-Auth-Token", "identifies the caller"),
    ],
)
def test_hint_gives_the_correct_value(name: str, bad: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({}, **{name: bad})
    assert hint in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sample_interval_s", "250ms", 0.25),
        ("burst_s", "3m", 180.0),
        ("rate_high_rps", "6000/m", 100.0),
        ("retry_jitter", "85%", 0.85),
        ("tiers", "85%:70%, 95 : 0", ((85.0, 0.7), (95.0, 0.0))),
        ("workers", "+1_000", 1000),
        ("trusted_proxies", "UNIX, 10.0.0.0/8,::ffff:10.0.0.1", ("unix", "10.0.0.0/8", "10.0.0.1")),
        ("trusted_proxies", "2001:DB8::/32", ("2001:db8::/32",)),
        ("exempt_paths", "none", ()),
        ("identity", "Header:X-Api-Key", "header:x-api-key"),
        ("identity", "Bearer", "bearer"),
        ("identity", "my.mod:Class.identify", "my.mod:Class.identify"),
        ("gpu", "FAKE: trace.csv", ("fake:trace.csv",)),
        (
            "gpu",
            " NVML , VLLM: http://h:8000/m?a=1,2,x , fake:a,b.csv,vllm2 ,DCGM:http://h",
            ("nvml", "vllm:http://h:8000/m?a=1,2,x", "fake:a,b.csv,vllm2", "dcgm:http://h"),
        ),
        (
            "gpu",
            "auto,vllm:http://h:8000,vllm:http://h:8001",
            ("auto", "vllm:http://h:8000", "vllm:http://h:8001"),
        ),
        ("gpu_selector", ' { a="b,c", d=~\'e"\' , } ', 'a="b,c", d=~\'e"\''),
        ("gpu_selector", 'a!="\\""', 'a!="\\""'),
        ("gpu_required", "On", True),
        ("user_limit", "Off", ()),
        ("gpu_devices", "0,MIG-GPU-1f/1/0", ("0", "MIG-GPU-1f/1/0")),
        ("policy", "Concurrency", Policy.CONCURRENCY),
        ("slo_s", "1m", 60.0),
        ("latency_budget", "25%", 0.25),
        ("deadline_header", "X-Deadline", "x-deadline"),
        ("websockets", "Slot", WebSocketMode.SLOT),
        ("gpu_pressure_terms", "Latency, memory,latency", ("latency", "memory")),
        ("gpu_pressure_terms", "none", ()),
        ("redis_on_error", "Deny", StoreFailureMode.DENY),
        ("service", " llm-7B_v1.2 ", "llm-7B_v1.2"),
        ("redis_deadline_s", "20ms", 0.02),
        ("fleet_host", "gpu-7.example.org", "gpu-7.example.org"),
        ("breaker_open_s", "1m", 60.0),
        ("breaker_backoff", "2", 2.0),
        (
            "breaker_trip",
            " Failure_Rate,consecutive",
            frozenset({TripRule.CONSECUTIVE, TripRule.FAILURE_RATE}),
        ),
        ("breaker_ramp", "10%, 0.5", (0.1, 0.5)),
        ("breaker_ramp", "None", ()),
        ("breaker_slow_is", "Separate", SlowCallMode.SEPARATE),
        ("breaker_failure_rate", "25%", 0.25),
        ("breaker_on_429", "OPEN", TooManyRequestsMode.OPEN),
        ("breaker_mode", "metrics_only", BreakerMode.METRICS_ONLY),
        ("degrade_shed_at", "75%", 0.75),
        ("record_body", "Full", RecordBody.FULL),
        ("record_max_bytes", "1MiB", 2**20),
        ("record_max_s", "10m", 600.0),
        ("record_sample", "10%", 0.1),
        ("record_headers", "X-Model, x-trace,x-model", ("x-model", "x-trace")),
        ("record_query", "page,a[]", ("page", "a[]")),
        ("record_mask_paths", "/users/{id}, /reset/*,/*,/{a}/b", ("/users/{id}", "/reset/*", "/*", "/{a}/b")),
    ],
)
def test_text_is_read_from_each_source(name: str, text: str, value: object, tmp_path: Path) -> None:
    file = tmp_path / "throttle.toml"
    file.write_text(f"{name} = {json.dumps(text)}\n")
    given: dict[str, Any] = {name: text}
    made = [Settings(**given), Settings.from_env({PREFIX + "CONFIG_FILE": str(file)})]
    if not settings_table()[name].file_only:
        made.append(Settings.from_env({PREFIX + name.upper(): text}))
    assert [settings.value_of(name) for settings in made] == [value] * len(made)


@pytest.mark.parametrize("none", ["none", " None ", ["none"], ("NONE",), []])
@pytest.mark.parametrize(
    "name", ["trusted_proxies", "exempt_paths", "gpu_pressure_terms", "breaker_ramp", "record_headers"]
)
def test_word_none_is_the_empty_list(name: str, none: Any) -> None:
    given: dict[str, Any] = {name: none}
    assert Settings(**given).value_of(name) == ()


def test_source_none_stays_a_source_of_telemetry() -> None:
    assert Settings(gpu=["none"]) == Settings(gpu="None")
    assert Settings(gpu="none").gpu.gpu == ("none",)
