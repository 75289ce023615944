"""Generates the settings page of the documentation.

Run: ``python -m docs.generate.settings > docs/settings.md``.

Names, allowed values and defaults come from the table of settings. Meaning and origin come from the
docstrings below the fields, which no running program can read: the sources are parsed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from autoglm_throttle.settings import PREFIX, BreakerSettings, Setting, groups
from autoglm_throttle.settings.groups import GROUPS
from autoglm_throttle.settings.groups.base import declared
from autoglm_throttle.settings.sources import PROCESSES

DESIGN: Final = "chosen in the design"
"""Origin of a default whose docstring names none."""

_ORIGIN: Final = re.compile(r" \[([^\[\]]+)\]$")
_LEAD: Final = re.compile(r"^Settings of (?:the |a )?")


class Meaning(NamedTuple):
    """The docstring of one setting."""

    text: str
    origin: str


def meanings(group: str) -> dict[str, Meaning]:
    """Return the meaning of each setting of a group by its flat name.

    Raises:
        KeyError: a setting has no docstring.
    """
    kind = GROUPS[group]
    fields = dict(_docstrings(_classes()[kind.__name__]))
    return {name: _meaning(fields[known.field]) for name, known in declared(kind).items()}


def heading(group: str) -> str:
    """Return the heading of a group: its docstring without ``Settings of``."""
    text = _LEAD.sub("", (ast.get_docstring(_classes()[GROUPS[group].__name__]) or "").splitlines()[0])
    return text[0].upper() + text[1:].rstrip(".")


@cache
def _classes() -> dict[str, ast.ClassDef]:
    folder = Path(groups.__file__).parent
    nodes = [node for path in sorted(folder.glob("*.py")) for node in ast.parse(path.read_text("utf-8")).body]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def _docstrings(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield each annotated field with the text below it."""
    for node, below in zip(kind.body, kind.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr):
            yield ast.unparse(node.target), str(ast.literal_eval(below.value))


def _short(known: Setting) -> str:
    """Return the name of a setting in prose: a variable without its prefix, or the key."""
    return known.name if known.file_only else known.name.upper()


def _meaning(docstring: str) -> Meaning:
    text = " ".join(docstring.split())
    origin = _ORIGIN.search(text)
    return Meaning(_ORIGIN.sub("", text), origin[1] if origin else DESIGN)


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

<!-- Made by `python -m docs.generate.settings > docs/settings.md`; edit the declarations instead. -->

Which settings exist, and how are they set? Each has one name, that of the first column: an argument of
`Settings(...)`, and a key of the TOML file that `CONFIG_FILE` names. {{variables}} of the {{settings}}
are environment variables as well, with the prefix `{PREFIX}`. The others are for the file and code
only: normal operation does not need them, and a change needs a measurement.

Code overrides the environment, which overrides a `.env` file, then the configuration file, then the default.
`*` marks settings that a first user should know. In the meanings, a name in capitals is a variable without
its prefix, and a name in lower case is for the file and code only.

- Variables are case-insensitive. An empty value means "not set". An unknown name with the prefix is an error;
  the message suggests the nearest known name.
- A plain number is in the unit of the table. `250ms`, `3m`, `1h`, `6000/m` (requests), `85%` are valid too.
- Lists are separated by commas; `none` is the empty list.
- Limits use the notation of the `limits` package: `100/minute;5/second`, `10 per 2 second`.
  Short units are accepted too: `1000/s`, `5/m`, `20/h`, `10/10s`.
  Whole numbers only: half a request per second is `30/minute`. `off` removes a limit.

**In code**, names are flat in arguments and grouped in values: `Settings(slo_s="250ms").concurrency.slo_s`
is 0.25. `Settings(...)` reads no environment; `Settings.from_env(slo_s=1)` does, and its arguments override
the environment.

**`{PROCESSES}`** is the default of `WORKERS`: uvicorn, gunicorn and others take their number of workers
from it. A value that is no number from 1 to 10000 is ignored with a warning, because it is meant for another
program. With `FLEET` it is not read: a fleet counts its processes.

**A `.env` file** is read only if it is given. `uvicorn --env-file .env` makes its lines variables;
`Settings.from_env(env_file=".env")` and `autoglm-throttle show --env-file .env` read it below variables.
No `.env` file is searched for. Lines are read by python-dotenv: quotes, comments and `export` are allowed,
and `${{NAME}}` is replaced from the environment of the process.

**Moved names.** Variables of earlier versions that are now for the file and code only are errors; the
message names the key. USER_STORAGE was removed: use `REDIS_URL`.

`autoglm-throttle show` prints the values in force, each with its place: the variable, file and line,
`argument` or `default`. `show --changed` omits the defaults. `autoglm-throttle check` prints all problems at
once, then warnings about settings that are allowed but probably not intended. Problems end with status 1;
with `check --strict`, for example in CI, warnings do as well.
"""

_GUARD_ROWS: Final = "\n".join(
    f"| `{known.field}` | replaces `{_short(known)}` |" for known in declared(BreakerSettings).values()
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
| `methods` | HTTP methods, `GET` covers `HEAD`; not set: all |
| `priority` | `high`, `mid` or `low`; not set: that of the request, or `PRIORITY_DEFAULT` |
| `cost` | units taken for each request; not set: 1 |
| `user_limit` | replaces the limit of plan and settings; `off` removes it |
| `name` | name in rejections, logs and metrics; not set: methods and pattern |
| `exempt` | `true`: counted, but never charged nor rejected |
| `slo_s` | replaces `SLO_S`: the route is a work class with this objective, which bounds its latency aim \
and its wait in the queue; not set: `SLO_S`, or what is learned |
| `slot` | when its requests hold a slot of the concurrency limit: `request`, while the app works, an event \
stream not while it is idle; `stream`, the same for a stream of any type, and its body is not awaited first; \
`none`, never; not set: `request` |
| `resource_policy` | a table with any of the three keys below, for the requests of the route |

| key of `[resource_policy]` | meaning |
|---|---|
| `precision_hint` | replaces `precisions` |
| `gpu_memory_ratio` | replaces the setting of the same name; on a route it is the cap of all its requests, \
of every class |
| `compute_priority` | replaces the setting of the same name |

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
| `max_stale_s` | replaces `degrade_max_stale_s` |

A value that is not set in a table is that of all guards; a value in code overrides the table.
A name with characters other than letters, digits, dashes and underscores must be quoted.
"""


@cache
def settings_page() -> str:
    """Build the whole page as Markdown."""
    known = [setting for kind in GROUPS.values() for setting in declared(kind).values()]
    variables = sum(not setting.file_only for setting in known)
    parts = [_HEAD.replace("{variables}", str(variables)).replace("{settings}", str(len(known)))]
    parts += ["\n".join(_section(group)) for group in GROUPS]
    return "\n".join([*parts, _TAIL])


def _section(group: str) -> Iterator[str]:
    kind = GROUPS[group]
    yield f"## {heading(group)}\n"
    left_out = f", whose fields leave out `{kind.prefix}`" if kind.prefix else ""
    yield f"In code: `settings.{group}`{left_out}.\n"
    yield "| setting | variable | allowed | default | meaning | origin of the default |"
    yield "|---|---|---|---|---|---|"
    for name, meaning in meanings(group).items():
        yield "| " + " | ".join(_cells(declared(kind)[name], meaning)) + " |"
    yield ""


def _cells(known: Setting, meaning: Meaning) -> Iterator[str]:
    yield f"`{known.name}`" + (" *" if known.starred else "")
    yield "file and code only" if known.file_only else f"`{known.variable}`"
    yield known.field_type.allowed
    yield f"`{known.default_text}`" if known.default_text else "not set"
    yield meaning.text
    yield meaning.origin


if __name__ == "__main__":
    sys.stdout.write(settings_page())
