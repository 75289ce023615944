"""Random mutations of right settings: of a TOML file, of an environment, and of arguments in code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from autoglm_throttle.settings import PREFIX, BreakerSettings, GuardPolicy, settings_table
from tests.settings.hostile_values import TEXTS, hostile_values

SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

SCALARS = """\
policy = "adaptive"
rate_high_rps = "6000/m"
rate_low_rps = 12.5
workers = 4
slo_s = "30s"
inflight_max = 1_000
tiers = [[80, 0.5], [90, 0]]
tier_samples = 5
max_users = 2000
redis_url = "redis://me:secret-password@127.0.0.1:6379/0"
service = "llm-7B"
redis_deadline_s = "20ms"
fleet = true
identity = "header:x-api-key"
key_secret = "0123456789abcdef"
trusted_proxies = ["10.0.0.0/8", "unix"]
exempt_paths = "/health, /ready"
retry_jitter = "20%"
gpu = ["auto", "vllm:http://127.0.0.1:8000/metrics"]
gpu_devices = [0, "GPU-1f"]
sample_interval_s = 0.5
breaker_trip = "consecutive,failure_rate"
breaker_ramp = [0.1, 0.5]
degrade_shed_at = 0.7
record_headers = "x-model"
period_s = "250ms"
degrade_cache_body_bytes = "256KiB"
"""

RIGHT: Mapping[str, tuple[Any, ...]] = {
    "policy": ("tiers", "Concurrency", "fixed"),
    "signal": ("pressure", "utilization"),
    "dry_run": ("yes", True),
    "rate_high_rps": ("6000/m", 7, 0.5),
    "tiers": ("80:0.5,90:0", [[80, 0.5]]),
    "user_limit": ("100/minute;5/second", "off"),
    "user_limit_low": ("10 per 2 second",),
    "workers": ("+1_000", 3),
    "slo_s": ("1m", 30),
    "inflight_max": ("0", 64),
    "identity": ("bearer", "header:X-Key", "my.module:identify"),
    "key_secret": ("0123456789abcdef",),
    "trusted_proxies": ("10.0.0.0/8,::1,unix", ["10.0.0.1"]),
    "priority_default": ("high", "3"),
    "deadline_header": ("X-Deadline",),
    "exempt_paths": ("/a,/b/c", ["/x"]),
    "redis_url": ("redis://u:pass@127.0.0.1:6379/0", "unix:///run/redis.sock"),
    "service": ("llm_7B",),
    "fleet": (True, "true"),
    "gpu": ("nvml,vllm:http://h:8000/m", ["auto", "dcgm:http://h"], "none", "fake:a b.csv", ["fake:a,nvml"]),
    "gpu_selector": ('cluster="a,b"', ""),
    "gpu_devices": ("0,GPU-1f", [0, 1]),
    "sample_interval_s": ("250ms", 5),
    "gpu_stale_after_s": (9,),
    "gpu_pressure_terms": ("queue,kv", ["memory"]),
    "precisions": ("fp16,INT8",),
    "gpu_memory_ratio": ("60%", 0.6),
    "breaker_trip": ("slow_rate", ["consecutive"]),
    "breaker_slow_call_s": ("250ms",),
    "breaker_ramp": ("10%,50%", [0.25]),
    "breaker_on_429": ("open",),
    "degrade_shed_at": ("70%", 0.5),
    "record_path": ("/tmp/traffic.jsonl.gz",),
    "record_max_bytes": ("64KiB",),
    "record_query": ("page,a[]",),
    "record_mask_paths": ("/users/{id}",),
    "config_file": ("throttle.toml",),
    "unknown_env": ("warn",),
    "period_s": (1, "50ms"),
    "reserve_mid": (0.1,),
    "degrade_cache_entries": (7,),
}
"""Setting -> values that it allows."""

GUARD: Mapping[str, tuple[Any, ...]] = {
    "failures": (3, "7"),
    "open_s": ("30s", 1.5),
    "open_max_s": ("1h",),
    "trip": ("failure_rate,consecutive", ["slow_rate"]),
    "window": (20,),
    "min_calls": (5,),
    "failure_rate": ("25%",),
    "slow_call_s": (1,),
    "slow_is": ("separate",),
    "ramp": ([0.1], "none"),
    "mode": ("disabled",),
}

ROUTE: Mapping[str, tuple[Any, ...]] = {
    "pattern": ("/v1/chat", "/a/{id}/*", "/"),
    "methods": (["POST"], "GET,PUT"),
    "priority": ("high", "low"),
    "cost": (2, 0.5),
    "user_limit": ("5/s", "off"),
    "name": ("chat",),
    "exempt": (True, False),
    "slo_s": ("30s", 5),
    "resource_policy": ({"gpu_memory_ratio": 0.4}, {"precision_hint": "fp16"}),
}

PLAN: Mapping[str, tuple[Any, ...]] = {
    "name": ("gold",),
    "user_limit": ("1000/minute",),
    "priority": ("high",),
    "members": (["07f3a9c2d4e5b617"], ()),
}

RESOURCE: Mapping[str, tuple[Any, ...]] = {
    "precision_hint": ("fp16,int8",),
    "gpu_memory_ratio": (0.5, "50%"),
    "compute_priority": ("low",),
}

COLUMNS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "Settings": {
        **dict.fromkeys((*settings_table(), "routes", "plans", "guards", "resource_policy"), ()),
        **RIGHT,
    },
    "RoutePolicy": ROUTE,
    "PlanPolicy": PLAN,
    "GuardPolicy": {
        **dict.fromkeys(GuardPolicy.model_fields, ()),
        **GUARD,
        "name": ("vector-db",),
        "criticality": ("non_core",),
        "shed_above": (0.5,),
    },
    "BreakerSettings": {**dict.fromkeys(BreakerSettings.model_fields, ()), **GUARD},
    "ResourcePolicy": RESOURCE,
}
"""Call -> arguments that it allows."""

REQUIRED: Mapping[str, str] = {"RoutePolicy": "pattern", "PlanPolicy": "name", "GuardPolicy": "name"}

TOML_VALUES = (
    *(
        "1",
        "-1",
        "0.5",
        "true",
        '"text"',
        "''",
        "[]",
        "{}",
        "[1, 2]",
        "[[]]",
        '["a", 1]',
        "{a = 1}",
        "inf",
        "nan",
    ),
    *("1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "1979-13-45", "0x1F", "1_0", "1e400", "9" * 400),
    *("9" * 5000, '"\\u0000"', '"\\ud800"', '"\\U0001F600"', '"""\n\n"""', "[", "]", "{", '"', "'", "\\", ""),
    *("\n[[routes]]\n", "\n[plans]\n", "\n[guards.a]\n", "\n[routes]\n", "# ", "\r", "\t", ",", ".", "="),
)
"""Parts of TOML, right and wrong."""

TOKEN = re.compile(r'"[^"\n]*"|[\w.-]+|\s+|.', re.DOTALL)

BYTES = b"\"'[]{}=.,#\\\n\r\t\x00\x1b\x7f\xff\xed\xa0\x80 0-_aZ"

HOSTILE = hostile_values()

Mutation = Callable[[Random, str], str]


def full_example() -> str:
    """Return a TOML file with scalar settings, routes, plans and guards: the example of the settings page."""
    page = SETTINGS_PAGE.read_text("utf-8")
    return SCALARS + page.partition("```toml\n")[2].partition("```")[0]


def mutated_file(rng: Random, text: str) -> bytes:
    """Apply one to three mutations of tokens or lines, or of bytes."""
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(TOML_MUTATIONS)(rng, text)
    # A surrogate in the text makes a file that is not UTF-8.
    data = text.encode("utf-8", "surrogatepass")
    return _mutated_bytes(rng, data) if rng.random() < 0.3 else data


def mutated_environ(rng: Random) -> dict[str, str]:
    """Draw right variables, then change values, swap them, or change names."""
    names = [name for name in RIGHT if not settings_table()[name].file_only]
    environ = {}
    for name in rng.sample(names, rng.randint(1, 6)):
        first = RIGHT[name][0]
        environ[PREFIX + name.upper()] = first if isinstance(first, str) else str(first)
    for _ in range(rng.randint(1, 3)):
        variable, kind = rng.choice(list(environ)), rng.random()
        if kind < 0.25:
            environ[variable] = rng.choice(TEXTS)
        elif kind < 0.5:
            environ[variable] = mutated_text(rng, environ[variable])
        elif kind < 0.7:
            environ[PREFIX + rng.choice(list(settings_table())).upper()] = environ[variable]
        else:
            environ[_mutated_name(rng, variable)] = environ[variable]
    return environ


def mutated_arguments(rng: Random, call: str) -> dict[str, tuple[str, Any]]:
    """Draw right arguments of a call; mostly replace some by hostile values, or by those of others.

    Returns:
        Argument -> printable name of its value, and the value.
    """
    columns = COLUMNS[call]
    named = {name: options for name, options in columns.items() if options}
    drawn: dict[str, tuple[str, Any]] = {}
    for name in [*_required(call), *rng.sample(list(named), rng.randint(0, min(4, len(named))))]:
        value = rng.choice(named[name])
        drawn[name] = (repr(value), value)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        name = rng.choice(list(columns))
        other = rng.choice(list(named.values()))
        drawn[name] = _hostile(rng, name) if rng.random() < 0.8 else (repr(other[0]), other[0])
    if call == "Settings" and rng.random() < 0.1:
        name = mutated_text(rng, rng.choice(list(RIGHT)))
        drawn.setdefault(name, ("1", 1))
    return drawn


def mutated_text(rng: Random, text: str) -> str:
    """Insert, delete, double or replace one character."""
    at = rng.randrange(len(text) + 1)
    character = rng.choice("xX_0-9 .,:;/=@?#%*\"'\n\0\x1b\udcff\u017f\u0130\u00e9")
    middle = rng.choice((character, character + text[at : at + 1], "", text[at : at + 1] * 2))
    return text[:at] + middle + text[at + 1 :]


def _required(call: str) -> list[str]:
    return [REQUIRED[call]] if call in REQUIRED else []


def _hostile(rng: Random, argument: str) -> tuple[str, Any]:
    """Draw a hostile value, alone or inside a container that the argument may allow."""
    label = rng.choice(list(HOSTILE))
    value = HOSTILE[label]()
    wrappers: list[tuple[str, Callable[[object], object]]] = [("{}", lambda v: v)] * 3
    wrappers += [("[{}]", lambda v: [v]), ("({}, 'a')", lambda v: (v, "a"))]
    column = {"routes": ROUTE, "plans": PLAN, "guards": GUARD, "resource_policy": RESOURCE}.get(argument)
    if column:
        key = rng.choice(list(column))
        wrappers += [(f"{{{key}: {{}}}}", lambda v: {key: v})] * 2
        wrappers += [(f"{{a: {{{key}: {{}}}}}}", lambda v: {"a": {key: v}})] * 4
        wrappers += [(f"[{{pattern: /a, {key}: {{}}}}]", lambda v: [{"pattern": "/a", key: v}])] * 4
    text, wrap = rng.choice(wrappers)
    return text.replace("{}", label), wrap(value)


def _mutated_name(rng: Random, variable: str) -> str:
    other = rng.choice(
        (
            variable.lower(),
            variable.title(),
            PREFIX,
            PREFIX + "ROUTES",
            PREFIX + "PERIOD_S",
            rng.choice(TEXTS),
        )
    )
    return other if rng.random() < 0.3 else mutated_text(rng, variable)


def _mutated_bytes(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    new = bytes(rng.choice(BYTES) for _ in range(rng.randint(0, 3)))
    return data[:at] + new + data[at + rng.randint(0, 4) :]


def _changed_token(rng: Random, text: str) -> str:
    tokens = TOKEN.findall(text)
    at, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[at] = rng.choice(("", tokens[at] * 2, tokens[other], rng.choice(TOML_VALUES)))
    return "".join(tokens)


def _changed_value(rng: Random, text: str) -> str:
    """Replace the value of one key: by a value of another type, or of another key."""
    pairs = list(re.finditer(r"(?m)^([\w.\"-]+ = )(.*)$", text))
    pair, other = rng.choice(pairs), rng.choice(pairs)
    hostile = json.dumps(rng.choice(TEXTS), ensure_ascii=False)
    value = rng.choice((other[2], rng.choice(TOML_VALUES), hostile, _deep(rng)))
    return text[: pair.start(2)] + value + text[pair.end(2) :]


def _changed_key(rng: Random, text: str) -> str:
    """Rename one key, or give it twice."""
    key = rng.choice(list(re.finditer(r"(?m)^[\w-]+(?= = )", text)))
    quoted = json.dumps(rng.choice(TEXTS), ensure_ascii=False)
    name = rng.choice((mutated_text(rng, key[0]), quoted, key[0] + ".a", rng.choice(list(settings_table()))))
    twice = f"{key[0]} = 1\n" if rng.random() < 0.3 else ""
    return text[: key.start()] + twice + name + text[key.end() :]


def _changed_line(rng: Random, text: str) -> str:
    """Move, double or drop one line."""
    lines = text.splitlines(keepends=True)
    line = lines.pop(rng.randrange(len(lines)))
    for _ in range(rng.randint(0, 2)):
        lines.insert(rng.randrange(len(lines) + 1), line)
    return "".join(lines)


def _deep(rng: Random) -> str:
    depth = rng.choice((2, 90, 2000))
    before, after = rng.choice((("[", "]"), ("{a = ", "}"), ("[{a = ", "}]")))
    return before * depth + "1" + after * depth


TOML_MUTATIONS: tuple[Mutation, ...] = (_changed_token, _changed_value, _changed_key, _changed_line)
