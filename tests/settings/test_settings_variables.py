"""Names in the environment: the variables, those that moved to the file, a removed one, and typos."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest

from autoglm_throttle.settings import PREFIX, ConfigError, Problem, Settings, SettingSource, settings_table
from autoglm_throttle.settings.groups import GROUP_OF, GROUPS

VARIABLES = re.findall(
    r"\w+",
    """
    POLICY DRY_RUN SIGNAL TIERS TIER_SAMPLES NGINX_FLAGS_DIR
    RATE_HIGH_RPS RATE_MID_RPS RATE_LOW_RPS BURST_S WORKERS
    SLO_S SLO_TTFT_S SLO_TTFT_HIGH_S SLO_TTFT_MID_S SLO_TTFT_LOW_S INFLIGHT_MAX QUEUE_MAX WEBSOCKETS
    USER_LIMIT USER_LIMIT_HIGH USER_LIMIT_MID USER_LIMIT_LOW CONCURRENCY_PER_USER MAX_USERS TOKENS_LIMIT
    REDIS_URL REDIS_ON_ERROR SERVICE REDIS_PREFIX REDIS_DEADLINE_S
    FLEET FLEET_GPU FLEET_HOST
    IDENTITY KEY_SECRET TRUSTED_PROXIES PRIORITY_DEFAULT PRIORITY_HEADER PRIORITY_HEADER_TRUST
    DEADLINE_HEADER EXEMPT_PATHS
    HEADERS
    GPU GPU_DEVICES GPU_SELECTOR GPU_REQUIRED SAMPLE_INTERVAL_S SAMPLE_ADAPTIVE GPU_AGGREGATE GPU_UNKNOWN
    GPU_MEMORY_TARGET
    QUOTAS
    BREAKER_FAILURES BREAKER_OPEN_S BREAKER_HALF_OPEN_MAX BREAKER_TIMEOUT_S BREAKER_TRIP BREAKER_SLOW_CALL_S
    BREAKER_MODE BREAKER_SHARED
    DEGRADE_SHED_AT DEGRADE_STALE_AT DEGRADE_STATIC_AT
    RECORD_PATH
    METRICS STATUS_TOKEN ALERT_WEBHOOK_URL
    CONFIG_FILE UNKNOWN_ENV
""",
)
"""All variables, without their prefix."""

STARRED = re.findall(
    r"\w+",
    """
    POLICY DRY_RUN TIERS RATE_HIGH_RPS RATE_MID_RPS RATE_LOW_RPS WORKERS SLO_S INFLIGHT_MAX USER_LIMIT
    REDIS_URL REDIS_ON_ERROR IDENTITY KEY_SECRET TRUSTED_PROXIES PRIORITY_DEFAULT EXEMPT_PATHS
    GPU SAMPLE_INTERVAL_S BREAKER_FAILURES BREAKER_OPEN_S DEGRADE_SHED_AT METRICS CONFIG_FILE
""",
)
"""Those that a first user should know."""

MOVED = [name for name, known in settings_table().items() if known.file_only]

WARN = {PREFIX + "UNKNOWN_ENV": "warn"}

BESIDE = {
    "fleet": {"REDIS_URL": "redis://h"},
    "fleet_gpu": {"REDIS_URL": "redis://h"},
    "breaker_shared": {"REDIS_URL": "redis://h"},
}
"""Setting -> variables that it needs."""


def problems_of(environ: Mapping[str, str], env_file: Path | None = None) -> list[Problem]:
    """Return the problems of an environment."""
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ, env_file)
    return caught.value.problems


def test_variables_are_those_of_the_design() -> None:
    table = settings_table().values()
    variables = [known.variable.removeprefix(PREFIX) for known in table if not known.file_only]
    starred = [known.variable.removeprefix(PREFIX) for known in table if known.starred]
    assert len(VARIABLES) == 70
    assert sorted(variables) == sorted(VARIABLES)
    assert sorted(starred) == sorted(STARRED)
    assert (len(table), len(MOVED)) == (175, 105)


@pytest.mark.parametrize("variable", VARIABLES)
def test_variable_sets_its_setting(variable: str, tmp_path: Path) -> None:
    name = variable.lower()
    known = settings_table()[name]
    file = tmp_path / "throttle.toml"
    file.touch()
    unlike = {"CONFIG_FILE": str(file), "DEADLINE_HEADER": "x-deadline"}
    text = unlike.get(variable, known.default_text or known.field_type.example)
    environ = {variable: text} | BESIDE.get(name, {})
    read = Settings.from_env({PREFIX + other: value for other, value in environ.items()})
    assert read.source_of(name) is SettingSource.ENV
    alone = GROUPS[GROUP_OF[name]](**{known.field: text})
    assert read.value_of(name) == getattr(alone, known.field)
    assert read.place_of(name) == PREFIX + variable


@pytest.mark.parametrize("name", MOVED)
def test_moved_variable_names_the_new_place(name: str, tmp_path: Path) -> None:
    variable, text = PREFIX + name.upper(), settings_table()[name].default_text or "1"
    expected = (
        "is no environment variable any more",
        f"set {name} in the file that {PREFIX}CONFIG_FILE names, or Settings({name}=...)",
    )
    file = tmp_path / "prod.env"
    file.write_text(f"{variable}={text}\n")
    assert problems_of({variable: text}) == [Problem(variable, *expected)]
    assert problems_of({variable.title(): text}) == [Problem(variable.title(), *expected)]
    assert problems_of({}, file) == [Problem(f"{variable} in prod.env", *expected)]


@pytest.mark.parametrize("name", MOVED)
def test_moved_variable_is_a_warning_with_unknown_env_warn(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    variable = PREFIX + name.upper()
    with caplog.at_level(logging.WARNING, "autoglm_throttle"):
        read = Settings.from_env({variable: "1"} | WARN)
    assert read == Settings(unknown_env="warn")
    assert [problem.variable for problem in read.ignored] == [variable]
    assert f"{variable}: is no environment variable any more" in caplog.text


def test_moved_variable_is_one_problem_among_others() -> None:
    environ = {PREFIX + "PERIOD_S": "1", PREFIX + "WORKERS": "0"}
    places = [problem.variable for problem in problems_of(environ)]
    assert places == [PREFIX + "WORKERS", PREFIX + "PERIOD_S"]
    assert [problem.variable for problem in problems_of(environ | WARN)] == [PREFIX + "WORKERS"]


def test_empty_moved_variable_is_not_set() -> None:
    assert Settings.from_env({PREFIX + "PERIOD_S": " "}) == Settings()


def test_removed_setting_names_the_one_to_use(tmp_path: Path) -> None:
    file = tmp_path / "throttle.toml"
    file.write_text('user_storage = "memory"\n')
    variable, message = PREFIX + "USER_STORAGE", f"removed; use {PREFIX}REDIS_URL"
    assert problems_of({variable: "memory"}) == [Problem(variable, message)]
    in_file = problems_of({PREFIX + "CONFIG_FILE": str(file)})
    assert in_file == [Problem("throttle.toml:1: user_storage", message)]
    read = Settings.from_env({variable: "memory", PREFIX + "CONFIG_FILE": str(file)} | WARN)
    assert read.ignored == (Problem(variable, message), *in_file)


def typos(name: str) -> set[str]:
    """Return each name with one character left out, doubled, changed or swapped that is not itself known."""
    made = {name[:i] + name[i + 1 :] for i in range(len(name))}
    made |= {name[:i] + name[i] + name[i:] for i in range(len(name))}
    made |= {name[:i] + other + name[i + 1 :] for i in range(len(name)) for other in "X_"}
    made |= {name[:i] + other + name[i:] for i in range(len(name) + 1) for other in "X_S"}
    made |= {name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in range(len(name) - 1)}
    return made - {PREFIX + known.upper() for known in settings_table()}


TYPOS = {name: typos(PREFIX + name.upper()) for name in settings_table()}
OF_TWO = {typo for typo, count in Counter(chain.from_iterable(TYPOS.values())).items() if count > 1}
"""One typo away from two names, such as ``REFUSED_CACHE_``: either may be meant."""


@pytest.mark.parametrize("name", settings_table())
def test_typo_in_a_variable_is_reported_with_the_right_name(name: str) -> None:
    right = f"{name} in CONFIG_FILE" if name in MOVED else PREFIX + name.upper()
    wrong = sorted(TYPOS[name] - OF_TWO)
    hints = {problem.variable: problem.hint for problem in problems_of(dict.fromkeys(wrong, "1"))}
    assert hints == dict.fromkeys(wrong, f"did you mean {right}?")
