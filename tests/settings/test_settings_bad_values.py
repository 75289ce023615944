"""A table of values that must be refused: every setting, all at once."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.model import OnError, Policy, WebSockets
from autoglm_throttle.settings import PREFIX, SETTINGS, ConfigError, Settings

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
    "slo_s": ["0", "2 fortnights", "86401", None],
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
    "user_limit": ["0/second", "1/s;2/s", "fast", 5, [5], [None], "1/s;2/2s;3/3s;4/4s;5/5s"],
    "user_limit_high": ["-5/s"],
    "user_limit_mid": ["16777216/s"],
    "user_limit_low": ["5/s;"],
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
    "user_storage": ["memcached", "memcached://h:11211", 5, "async+redis://h:6379", "async+memcached://h\nx"],
    "redis_on_error": ["open", 1],
    "service": ["a:b", "a b", "{a}", "", "x" * 61, 5, "\u00e9"],
    "redis_prefix": ["a:b", "*", "x" * 61, None],
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
    "headers": ["openai"],
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
    "quotas": ["perhaps", 1],
    "precisions": ["fp16,-", "a b", 5, [5], {"fp16": 1}, "x" * 33],
    "compute_priority": ["urgent", 1],
    "gpu_memory_ratio": ["0.009", "70", "1.01"],
    "gpu_memory_ratio_low": ["0.009", "50", "1.01"],
    "metrics": ["otel"],
    "log_refused_every_s": ["0"],
    "config_file": ["a\0b", 5],
    "unknown_env": ["ignore"],
    "inflight_start": ["0", "1000001"],
    "inflight_floor": ["0", "10001"],
    "wait_budget": ["0", "1.1"],
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
}


def test_every_setting_has_a_bad_value() -> None:
    assert list(BAD) == list(SETTINGS)


def test_all_of_them_are_reported_at_once_in_order() -> None:
    texts = {name: next(v for v in bad if isinstance(v, str) and v) for name, bad in BAD.items()}
    environ = {SETTINGS[name].variable: text for name, text in texts.items() if not SETTINGS[name].tuning}
    constants = {name: text for name, text in texts.items() if SETTINGS[name].tuning}
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ, **constants)
    problems = caught.value.problems
    assert [problem.variable for problem in problems] == [*environ, *constants]
    for problem, name in zip(problems, SETTINGS, strict=True):
        form = SETTINGS[name].form
        assert form.allowed in problem.message
        assert problem.hint
        if not form.secret:
            assert "not '" in problem.message


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, values in BAD.items() for bad in values])
def test_a_bad_value_is_refused_alone(name: str, bad: Any) -> None:
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
        ("exempt_paths", "/health*", "would also free /healthcare"),
        ("trusted_proxies", "10.0.0.1/8", "write 10.0.0.0/8 or 10.0.0.1"),
        ("trusted_proxies", "*", "whoever is trusted can take any identity"),
        ("key_secret", "short", "this one has 5"),
        ("user_limit", "0.5/second", "say 30/minute"),
        ("sample_interval_s", "1 fortnight", "us, ms, s, m, min, h, d"),
        ("gpu", "amd", "'amd': not a known source"),
        ("gpu", "amd,dcgm,nvml,none,nvml", "'dcgm': after dcgm comes a URL"),
        ("gpu", "amd,dcgm,nvml,none,nvml", "'nvml' stands there twice"),
        (
            "gpu",
            "auto,nvml,none",
            "none stands alone; auto can be joined with dcgm, prometheus, vllm, sglang only",
        ),
        ("gpu", "vllm:http://u:pa/ss@h", "in a password are written %2F"),
    ],
)
def test_the_hint_says_what_to_write(name: str, bad: Any, hint: str) -> None:
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
        ("policy", "Gate", Policy.GATE),
        ("slo_s", "1m", 60.0),
        ("latency_budget", "25%", 0.25),
        ("deadline_header", "X-Deadline", "x-deadline"),
        ("websockets", "Slot", WebSockets.SLOT),
        ("gpu_pressure_terms", "Latency, memory,latency", ("latency", "memory")),
        ("gpu_pressure_terms", "none", ()),
        ("redis_on_error", "Deny", OnError.DENY),
        ("service", " llm-7B_v1.2 ", "llm-7B_v1.2"),
        ("redis_deadline_s", "20ms", 0.02),
        ("fleet_host", "gpu-7.example.org", "gpu-7.example.org"),
    ],
)
def test_what_is_read_from_texts(name: str, text: str, value: object) -> None:
    assert getattr(Settings.from_env({PREFIX + name.upper(): text}), name) == value
