"""Generates the settings page of the documentation from the table of settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from autoglm_throttle.settings.breaker_settings import BREAKER_FIELD_TYPES, BREAKER_PREFIX
from autoglm_throttle.settings.field import PREFIX, Setting
from autoglm_throttle.settings.fields import settings_table

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

<!-- Made by `python -m autoglm_throttle.settings > docs/settings.md`; edit the declarations instead. -->

Which settings exist, and how are they set? Each is an environment variable with the prefix `{PREFIX}`,
a key in lower case of the file that `CONFIG_FILE` names, or an argument of `Settings(...)`;
the constants of the last table have only the latter two.
Code overrides the environment, which overrides the configuration file, which overrides the default.
A `.env` file is read only if it is given: `uvicorn --env-file .env` makes its lines variables,
`Settings.from_env(env_file=".env")` and `autoglm-throttle show --env-file .env` read it below variables.
No `.env` file is searched for. `autoglm-throttle show` prints the values in force and their sources;
`autoglm-throttle check` prints all problems at once.

- Names are case-insensitive. An empty value means "not set". An unknown name with the prefix is an error;
  the message suggests the nearest known name.
- A plain number is in the unit of the table. `250ms`, `3m`, `1h`, `6000/m` (requests), `85%` are valid too.
- Lists are separated by commas; `none` is the empty list.
- Limits use the notation of the `limits` package: `100/minute;5/second`, `10 per 2 second`.
  Short units are accepted too: `1000/s`, `5/m`, `20/h`, `10/10s`.
  Whole numbers only: half a request per second is `30/minute`. `off` removes a limit.

`*` marks settings that a first user should know."""

_GUARD_ROWS: Final = "\n".join(
    f"| `{key}` | replaces `{(BREAKER_PREFIX + key).upper()}` |" for key in BREAKER_FIELD_TYPES
)

_TAIL: Final = f"""\
## Routes, plans and guards

They are tables in the TOML of `CONFIG_FILE`, or arguments in code:
`Settings(routes=[RoutePolicy(...)], plans=[PlanPolicy(...)], guards=[GuardPolicy(...)])`.

```toml
{EXAMPLE}```

| key of `[[routes]]` | meaning |
|---|---|
| `pattern` | segments are literal, `{{name}}` (any one) or, as the last, `*` (the rest, may be empty); \
the first matching pattern applies |
| `methods` | HTTP methods; not set: all |
| `priority` | `high`, `mid` or `low`; not set: that of the request, or `PRIORITY_DEFAULT` |
| `cost` | units taken for each request; not set: 1 |
| `user_limit` | replaces the limit of plan and settings; `off` removes it |
| `name` | name in rejections, logs and metrics; not set: methods and pattern |
| `exempt` | `true`: counted, but never charged nor rejected |
| `slo_s` | replaces `SLO_S` and thereby changes the queue timeout; not set: `SLO_S` |
| `resource_policy` | a table with any of the three keys below, for the requests of the route |

| key of `[resource_policy]` | meaning |
|---|---|
| `precision_hint` | replaces `PRECISIONS` |
| `gpu_memory_ratio` | replaces `GPU_MEMORY_RATIO`; on a route it is the cap of all its requests, \
of every class |
| `compute_priority` | replaces `COMPUTE_PRIORITY` |

A `resource_policy`, global or of a route, enables `QUOTAS` unless that is set.

| key of `[plans.<name>]` | meaning |
|---|---|
| `user_limit` | replaces `USER_LIMIT` for each member; `off` removes it |
| `priority` | the class of the members' requests |
| `members` | identities as printed by `autoglm-throttle identity`; needs `KEY_SECRET`; \
a caller is a member of one plan only |

| key of `[guards.<name>]` | meaning |
|---|---|
{_GUARD_ROWS}
| `criticality` | `core` or `non_core`; not set: that of the code |
| `shed_above` | replaces `DEGRADE_SHED_AT`; needs `criticality = "non_core"` |
| `max_stale_s` | replaces `DEGRADE_MAX_STALE_S` |

A value that is not set in a table is that of all guards; a value in code overrides the table.
A name with characters other than letters, digits, dashes and underscores must be quoted.
"""


def settings_page() -> str:
    """Build the whole page as Markdown."""
    parts = [_HEAD]
    for name, known in settings_table().items():
        if name in HEADINGS:
            parts.append(f"\n## {HEADINGS[name]}\n" + (_NOT_VARIABLES if known.file_only else ""))
            first = "key" if known.file_only else "variable"
            parts.append(
                f"| {first} | allowed | default | meaning | origin of the default |\n|---|---|---|---|---|"
            )
        parts.append("| " + " | ".join(_cells(known)) + " |")
    return "\n".join(parts) + "\n\n" + _TAIL


def _cells(known: Setting) -> Iterator[str]:
    star = " *" if known.starred else ""
    yield f"`{known.name if known.file_only else known.name.upper()}`{star}"
    yield known.field_type.allowed
    yield f"`{known.default_text}`" if known.default_text else "not set"
    yield known.about
    yield known.provenance
