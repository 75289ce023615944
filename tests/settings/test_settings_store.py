"""Settings of the shared store: contradictions, advice, and its password in texts."""

from __future__ import annotations

import importlib.util
import logging
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.settings import (
    ConfigError,
    PlanPolicy,
    Problem,
    RoutePolicy,
    Settings,
    settings_table,
)
from autoglm_throttle.settings.advice import PREREQUISITES, collect_advice, startup_advice
from autoglm_throttle.settings.groups.store import parse_redis_url
from autoglm_throttle.settings.problems import MASK, masked_url
from autoglm_throttle.types import STALL_S
from autoglm_throttle.types.identity import SHARED_KEY

URL = "redis://localhost:6379/0"
KEY = "0123456789abcdef"
PASSWORD = "planted-s3cret"


def problems(**values: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        (
            {"fleet": True, "redis_url": URL, "borrow": "down"},
            "borrow: must be off with FLEET (the tokens of a fleet are leased for each priority)",
        ),
        ({"fleet": True}, "fleet: needs REDIS_URL (processes share state through Redis)"),
        ({"fleet_gpu": True}, "fleet_gpu: needs REDIS_URL (processes share state through Redis)"),
        (
            {"redis_read_s": 0.05},
            "redis_read_s: must be above REDIS_DEADLINE_S, 0.05 s "
            "(else slow replies close their connections)",
        ),
        (
            {"redis_deadline_s": 0.2, "redis_read_s": 0.1},
            "redis_read_s: must be above REDIS_DEADLINE_S, 0.2 s (else slow replies close their connections)",
        ),
        (
            {"redis_deadline_s": 1},
            "redis_deadline_s: must be below redis_read_s, 1 s (or raise redis_read_s)",
        ),
    ],
)
def test_contradiction_of_the_store_is_one_problem(values: dict[str, Any], reported: str) -> None:
    assert problems(**values) == [reported]


def test_problems_of_the_store_are_reported_together() -> None:
    reported = problems(redis_url="?", fleet_gpu="?", redis_deadline_s=2, service="a:b")
    assert [text.partition(":")[0] for text in reported] == [
        *("redis_url", "service", "redis_deadline_s", "fleet_gpu")
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"redis_url": URL, "fleet": True, "fleet_gpu": True},
        {"redis_deadline_s": 0.99},
        {"redis_read_s": 0.06},
        {"fleet": False, "fleet_gpu": False},
        {"redis_url": URL, "plans": [PlanPolicy("gold", members=["07f3a9c2d4e5b617"])]},
    ],
)
def test_store_settings_that_agree_are_allowed(values: dict[str, Any]) -> None:
    Settings(**values)


def test_url_without_the_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "autoglm_throttle.settings.checks.find_spec", lambda name: None if name == "redis" else found(name)
    )
    assert problems(redis_url=URL, workers=0)[1] == (
        "redis_url: needs the package redis (pip install 'redis[hiredis]>=6.0')"
    )
    Settings(workers=1)


# --- the password ---


def shown_everywhere(settings: Settings) -> str:
    reported = [*map(str, collect_advice(settings)), *(settings.text_of(name) for name in settings_table())]
    return "\n".join([*reported, repr(settings), str(settings), repr(settings.model_dump())])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"redis://:{PASSWORD}@host:6379/0", f"redis://:{MASK}@host:6379/0"),
        (f"rediss://me:{PASSWORD}@host", f"rediss://me:{MASK}@host"),
        (f"redis://{PASSWORD}@host", f"redis://{MASK}@host"),
        (f"redis://me:a%40{PASSWORD}@host", f"redis://me:{MASK}@host"),
        (f"unix://:{PASSWORD}@/run/redis.sock", f"unix://:{MASK}@/run/redis.sock"),
        (
            f"redis+sentinel://me:{PASSWORD}@a:1,b:2/main?sentinel_password={PASSWORD}",
            f"redis+sentinel://me:{MASK}@a:1,b:2/main?sentinel_password={MASK}",
        ),
        (f"redis+cluster://:{PASSWORD}@[::1]:7000", f"redis+cluster://:{MASK}@[::1]:7000"),
        (f"redis://[me:{PASSWORD}@host", f"redis://[me:{MASK}@host"),
        (URL, URL),
    ],
)
def test_url_is_shown_without_its_password(url: str, shown: str) -> None:
    settings = Settings(redis_url=url)
    assert settings.text_of("redis_url") == shown
    assert PASSWORD not in shown_everywhere(settings)
    assert settings.store.redis_url is not None
    assert settings.store.redis_url.get_secret_value() == url


@pytest.mark.parametrize(
    "form",
    [
        "redis:/:{}@host",
        "redis:{}@host",
        "host:{}@host",
        "redis://host:{}",
        "redis://me:{}",
        "redis://me:it's {}",
        "redis://me:a/{}@host",
        "redis://me:a?{}@host",
        "redis://me:a#{}@host",
        "redis://me:{}/b@host",
        "redis://me:{}@host:0x",
        "redis://host/{}",
        "redis://host/0/{}",
        "redis://me:{}@[::1",
        "redis://me:{}@a,b",
        "http://me:{}@host",
        "redis+sentinel://:{}@host",
        "redis+sentinel://host/name/{}",
        "redis+cluster://:{}@host/1",
        "rediss://host?ssl_cert_reqs={}",
        "rediss://host?ssl_check_hostname={}",
        "unix://{}",
    ],
)
def test_problem_of_a_url_holds_no_part_of_the_password(form: str) -> None:
    (reported,) = problems(redis_url=form.format(PASSWORD))
    assert PASSWORD not in reported
    assert "s3cret" not in reported


def test_unencoded_password_hint_shows_the_encoding() -> None:
    (reported,) = problems(redis_url=f"redis://me:a/{PASSWORD}@host")
    assert "'/', '?', '#' and '@' in a password or a path must be written %2F, %3F, %23 and %40" in reported
    Settings(redis_url=f"redis://me:a%2F{PASSWORD}@host")


@pytest.mark.parametrize(
    "url", ["redis://me:{}@h", "redis+cluster://me:{}@h,g:7", "redis+sentinel://:{}@h/db"]
)
@pytest.mark.parametrize("password", ["1,2", "a,b", "12,34:56", ",", "p@ss,w"])
def test_comma_in_a_password_begins_no_host(url: str, password: str) -> None:
    address = parse_redis_url(url.format(password))
    assert address.login[1] == password
    assert address.hosts == parse_redis_url(url.format("x")).hosts
    assert f":{password}" not in str(address)


SAFE = st.text(string.ascii_letters + string.digits + "%._~-", min_size=1, max_size=12)
ANY = st.text(string.printable.strip(), min_size=6, max_size=12)


@given(user=SAFE | st.just(""), password=ANY, host=SAFE, path=SAFE)
def test_masked_url_keeps_user_and_host(user: str, password: str, host: str, path: str) -> None:
    shown = masked_url(f"redis://{user}:{password}@{host}/{path}")
    assert shown == f"redis://{user}:{MASK}@{host}/{path}"


@given(before=ANY | SAFE, password=SAFE.filter(lambda text: len(text) > 8), after=SAFE)
def test_text_between_colon_and_at_sign_is_masked(before: str, password: str, after: str) -> None:
    assert password not in masked_url(f"{before}:{password}@{after}").replace(after, "").replace(before, "")


def test_login_without_a_password_is_not_masked() -> None:
    assert masked_url("redis://me:@host") == "redis://me:@host"
    assert masked_url("redis://@host") == "redis://@host"
    assert masked_url("no url") == "no url"


# --- keys of identities ---


def test_processes_on_one_store_share_the_identity_key() -> None:
    assert Settings().identity_key is None
    assert Settings().store.redis_url is None
    assert Settings(redis_url=URL).identity_key == SHARED_KEY
    assert Settings(redis_url=URL, key_secret=KEY).identity_key == KEY.encode()
    assert Settings(key_secret=KEY).identity_key == KEY.encode()


# --- advice ---


def reported(function: Callable[[Settings], list[Problem]], **values: Any) -> list[str]:
    full: dict[str, Any] = {"policy": "tiers", "workers": 1, "user_limit": "5/s", "key_secret": KEY}
    return [
        problem.variable.removeprefix("AUTOGLM_THROTTLE_")
        for problem in function(Settings(**(full | values)))
    ]


@pytest.mark.parametrize(
    ("values", "about"),
    [
        ({"redis_url": URL, "user_limit": "off"}, "REDIS_URL"),
        (
            {
                "redis_url": URL,
                "user_limit": "off",
                "plans": [PlanPolicy("a", user_limit="off"), PlanPolicy("b")],
            },
            "REDIS_URL",
        ),
        (
            {
                "redis_url": URL,
                "user_limit": "off",
                "routes": [RoutePolicy("/a", exempt=True), RoutePolicy("/b", user_limit="off")],
            },
            "REDIS_URL",
        ),
        ({"redis_url": URL, "key_secret": None}, "KEY_SECRET"),
    ],
)
def test_unused_store_and_public_key_are_reported_at_start(values: dict[str, Any], about: str) -> None:
    assert reported(startup_advice, **values) == [about]
    assert reported(collect_advice, **{"user_limit": "off", **values}).count(about) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"user_limit": "off", "key_secret": None},
        {"redis_url": URL},
        {"redis_url": URL, "user_limit": "off", "fleet": True},
        {"redis_url": URL, "user_limit": "off", "fleet_gpu": True},
        {"redis_url": URL, "user_limit": "off", "breaker_shared": True},
        {"redis_url": URL, "user_limit": "off", "user_limit_low": "1/s"},
        {"redis_url": URL, "user_limit": "off", "plans": [PlanPolicy("a", user_limit="1/s")]},
        {"redis_url": URL, "user_limit": "off", "routes": [RoutePolicy("/a", user_limit="1/s")]},
    ],
)
def test_used_store_is_not_reported_at_start(values: dict[str, Any]) -> None:
    assert reported(startup_advice, **values) == []


def test_key_secret_is_reported_once_with_its_effect() -> None:
    def message(**values: Any) -> str:
        (found,) = [p for p in collect_advice(Settings(**values)) if p.variable.endswith("KEY_SECRET")]
        return found.message

    assert "differ in each process" in message()
    assert "a publicly known key" in message(redis_url=URL)


def test_advice_on_workers_names_the_effect() -> None:
    def hint(**values: Any) -> str | None:
        found = {p.variable: p.hint for p in collect_advice(Settings(**values))}
        return found.get("AUTOGLM_THROTTLE_WORKERS")

    away = "while the store is unavailable"
    assert "count per process" in (hint() or "")
    assert away in (hint(redis_url=URL) or "")
    assert away not in (hint(redis_url=URL, redis_on_error="deny") or away)
    assert hint(redis_url=URL, fleet=True) is None
    assert hint(redis_url=URL, workers=4) is None


ANOTHER: dict[str, Any] = {
    "redis_on_error": "deny",
    "service": "llm",
    "redis_prefix": "p",
    "redis_deadline_s": 0.1,
    "redis_failures": 5,
    "redis_probe_s": 2,
    "refused_cache": 0,
    "refused_cache_s": 2,
    "redis_partitions": 64,
    "redis_connect_s": 1,
    "redis_read_s": 2,
    "redis_in_flight": 4,
    "redis_batch_keys": 64,
    "redis_queue": 100,
    "fleet_lease_s": 2,
    "fleet_heartbeat_s": 2,
    "fleet_host": "gpu-7",
    "breaker_store_deadline_s": 0.1,
    "precisions": "fp16",
    "compute_priority": "low",
    "gpu_memory_ratio": 0.6,
    "gpu_memory_ratio_low": 0.4,
    "sample_interval_max_s": 5,
}
STORES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "redis": {"redis_url": URL},
    "fleet": {"redis_url": URL, "fleet": True},
    "gpus": {"redis_url": URL, "fleet_gpu": True},
    "breakers": {"redis_url": URL, "breaker_shared": True},
    "quotas": {"quotas": True},
    "sampling": {"sample_adaptive": True},
}
READ_WITH = {
    "redis_url": {"redis", "fleet", "gpus", "breakers"},
    "fleet": {"fleet"},
    "fleet_gpu": {"gpus"},
    "breaker_shared": {"breakers"},
    "quotas": {"quotas"},
    "sample_adaptive": {"sampling"},
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ANOTHER)
def test_store_setting_without_a_store_is_reported(name: str, store: str) -> None:
    needed = PREREQUISITES[name]
    read = store in READ_WITH[needed]
    full: dict[str, Any] = {"policy": "tiers", "workers": 1, "user_limit": "5/s", "key_secret": KEY}
    found = {
        p.variable: p.message
        for p in collect_advice(Settings(**(full | STORES[store] | {name: ANOTHER[name]})))
    }
    message = None if read else f"has no effect without {needed.upper()}"
    if (name, store) == ("compute_priority", "quotas"):  # read, and with an effect that surprises
        message = "is low for every request: the engine gets high, mid and low alike"
    expected = {} if message is None else {settings_table()[name].variable: message}
    assert found == expected


def test_settings_that_need_another_are_all_tested() -> None:
    assert set(ANOTHER) == set(PREREQUISITES)
    assert set(READ_WITH) == set(PREREQUISITES.values())


def test_log_of_a_start_holds_no_password(caplog: pytest.LogCaptureFixture) -> None:
    from autoglm_throttle import Throttle

    settings = Settings(redis_url=f"redis://me:{PASSWORD}@127.0.0.1:1/0", gpu="none")
    throttle = Throttle(settings, sampling="manual")
    with caplog.at_level(logging.DEBUG, "autoglm_throttle"):
        throttle.start()
    throttle.stop()
    assert f"me:{MASK}@127.0.0.1" in "".join(str(vars(record)) for record in caplog.records)
    assert PASSWORD not in "".join(str(vars(record)) for record in caplog.records)


@pytest.mark.parametrize("name", ["redis_deadline_s", "redis_connect_s", "redis_read_s"])
def test_time_shorter_than_a_late_timer_is_a_problem(name: str) -> None:
    longer: dict[str, Any] = {"redis_read_s": 20.0, "redis_deadline_s": 1.5 * STALL_S}
    longer[name] = 1.5 * STALL_S if name == "redis_deadline_s" else 10.0
    assert Settings(**longer).value_of(name) == longer[name]
    assert problems(**{name: STALL_S * 0.99})[0].startswith(f"{name}: must be a number ")
