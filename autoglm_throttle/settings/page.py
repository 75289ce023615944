"""Generates the settings page of the documentation from the table of settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoglm_throttle.settings.breaker_settings import BREAKER_FIELD_TYPES, BREAKER_PREFIX
from autoglm_throttle.settings.field import PREFIX, Setting
from autoglm_throttle.settings.fields import SETTINGS

HEADINGS: Final = {
    "policy": "Admission: policy, rates, concurrency limit, queue",
    "user_limit": "User limits",
    "redis_url": "Shared store",
    "identity": "Callers",
    "headers": "Responses",
    "gpu": "GPU telemetry",
    "quotas": "GPU memory quotas",
    "breaker_failures": "Circuit breakers",
    "degrade_shed_at": "Graceful degradation",
    "record_path": "Recorder",
    "metrics": "Metrics and logs",
    "config_file": "Loading of settings",
    "inflight_start": "Constants",
}
"""Name of the first setting of a group -> its heading."""

_NOT_VARIABLES: Final = """
Not needed in normal operation. They are keys of the file that `CONFIG_FILE` names, or arguments
of `Settings(...)`; as environment variables they are errors. Change them only with a measurement at hand.
"""

EXAMPLE: Final = """\
user_limit = "100/minute"

[resource_policy]
precision_hint = "fp16,int8"
gpu_memory_ratio = 0.7

[[routes]]
pattern = "/payments/*"
priority = "high"

[[routes]]
pattern = "/v1/generate"
methods = ["POST"]
cost = 4
user_limit = "20/minute;2/second"
slo_s = 30
resource_policy = { gpu_memory_ratio = 0.4, compute_priority = "low" }

[[routes]]
pattern = "/status/{job}"
exempt = true

[plans.gold]
user_limit = "1000/minute"
priority = "high"

[guards.vector-db]
failures = 3
timeout_s = "2s"

[guards."https://models.example.org:8443"]
trip = "failure_rate,slow_rate"
slow_call_s = 5
criticality = "non_core"
shed_above = "85%"
"""
"""A valid configuration file; the tests read it."""

_HEAD: Final = f"""\
# Settings

<!-- Made by `python -m autoglm_throttle.settings > docs/settings.md`; change the declarations instead. -->

Each setting is an environment variable with the prefix `{PREFIX}`,
a key in lower case of the file that `CONFIG_FILE` names, or an argument of `Settings(...)`;
the constants of the last table only the latter two.
Code wins over the environment, the environment over the configuration file, and all over the default.
A `.env` file is read only where it is handed over: `uvicorn --env-file .env` makes its lines variables,
`Settings.from_env(env_file=".env")` and `autoglm-throttle show --env-file .env` read it below the variables.
No other is looked for. `autoglm-throttle show` prints the values in force and their sources;
`autoglm-throttle check` prints every fault at once.

- Names are matched without case. An empty value means "not set". An unknown name with the prefix is an error,
  answered with the nearest known one.
- A plain number is in the unit of the table. `250ms`, `3m`, `1h`, `6000/m` (requests) and `85%` are read too.
- Lists are separated by commas; `none` is the empty list.
- Limits use the notation of the `limits` package: `100/minute;5/second`, `10 per 2 second`.
  Short units are read too: `1000/s`, `5/m`, `20/h`, `10/10s`.
  Whole numbers only: half a request per second is `30/minute`. `off` lifts a limit.

`*` marks settings that a first user should know."""

_GUARD_ROWS: Final = "\n".join(
    f"| `{key}` | replaces `{(BREAKER_PREFIX + key).upper()}` |" for key in BREAKER_FIELD_TYPES
)

_TAIL: Final = f"""\
## Routes, plans and guards

They stand in the TOML of `CONFIG_FILE`, or in code:
`Settings(routes=[RoutePolicy(...)], plans=[PlanPolicy(...)], guards=[GuardPolicy(...)])`.

```toml
{EXAMPLE}```

| key of `[[routes]]` | meaning |
|---|---|
| `pattern` | segments are literal, `{{name}}` (any one) or, as the last, `*` (the rest, may be empty); \
of several patterns the first that matches counts |
| `methods` | HTTP methods; not set: all |
| `priority` | `high`, `mid` or `low`; not set: as stated, or `PRIORITY_DEFAULT` |
| `cost` | units taken for each request; not set: 1 |
| `user_limit` | replaces the limit of plan and settings; `off` lifts it |
| `name` | name in rejections, logs and metrics; not set: methods and pattern |
| `exempt` | `true`: counted, but never charged nor rejected |
| `slo_s` | replaces `SLO_S`: such a request may wait longer, or less long; not set: `SLO_S` |
| `resource_policy` | a table with any of the three keys below, for the requests of the route |

| key of `[resource_policy]` | meaning |
|---|---|
| `precision_hint` | replaces `PRECISIONS` |
| `gpu_memory_ratio` | replaces `GPU_MEMORY_RATIO`; on a route it is the cap of all its requests, \
of every class |
| `compute_priority` | replaces `COMPUTE_PRIORITY` |

A `resource_policy`, there or on a route, turns `QUOTAS` on unless that is set.

| key of `[plans.<name>]` | meaning |
|---|---|
| `user_limit` | replaces `USER_LIMIT` for each member; `off` lifts it |
| `priority` | the class of the members' requests |
| `members` | identity texts as `autoglm-throttle identity` prints them; needs `KEY_SECRET`; \
a caller is a member of one plan only |

| key of `[guards.<name>]` | meaning |
|---|---|
{_GUARD_ROWS}
| `criticality` | `core` or `non_core`; not set: as the code has registered it |
| `shed_above` | replaces `DEGRADE_SHED_AT`; needs `criticality = "non_core"` |
| `max_stale_s` | replaces `DEGRADE_MAX_STALE_S` |

A value that is not set in a table is that of all guards; a value in code overrides the table.
A name that has other characters than letters, digits, dashes and underscores stands in quotes.
"""


def settings_page() -> str:
    """Build the whole page as Markdown."""
    parts = [_HEAD]
    for name, known in SETTINGS.items():
        if name in HEADINGS:
            parts.append(f"\n## {HEADINGS[name]}\n" + (_NOT_VARIABLES if known.tuning else ""))
            first = "key" if known.tuning else "variable"
            parts.append(
                f"| {first} | allowed | default | meaning | origin of the default |\n|---|---|---|---|---|"
            )
        parts.append("| " + " | ".join(_cells(known)) + " |")
    return "\n".join(parts) + "\n\n" + _TAIL


def _cells(known: Setting) -> Iterator[str]:
    star = " *" if known.starred else ""
    yield f"`{known.name if known.tuning else known.name.upper()}`{star}"
    yield known.field_type.allowed
    yield f"`{known.default_text}`" if known.default_text else "not set"
    yield known.about
    yield known.provenance
