"""Settings of token limits: notation, their number, and what they cannot be combined with."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.admission import factory
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.settings import ConfigError, Settings
from autoglm_throttle.store.fallback import fair_share
from autoglm_throttle.types import TokenLimit, TokenReserve, UserLimit


def test_token_limits_are_off_by_default() -> None:
    assert Settings().tokens.by_kind == {}
    users = UserLimits(LimitSets([()] * 3, by_plan={}, by_route={}, address_factor=1.0), 100)
    assert factory.token_limits(Settings(), users, 1) is None


def test_limits_are_named_by_kind_and_window() -> None:
    settings = Settings(tokens_limit="5/minute;9/hour", tokens_input_limit="4/day", tokens_reserve="learned")
    assert settings.tokens.by_kind == {
        "tokens": (TokenLimit("tokens-60s", 5, 60), TokenLimit("tokens-3600s", 9, 3600)),
        "input": (TokenLimit("input-86400s", 4, 86_400),),
    }
    assert settings.tokens.reserve is TokenReserve.LEARNED


def test_limit_of_all_tokens_comes_from_the_environment() -> None:
    settings = Settings.from_env({"AUTOGLM_THROTTLE_TOKENS_LIMIT": "60000/minute"})
    assert settings.tokens.limit == (UserLimit("user-60s", 60_000, 60),)
    with pytest.raises(ConfigError, match="set tokens_input_limit in the file"):
        Settings.from_env({"AUTOGLM_THROTTLE_TOKENS_INPUT_LIMIT": "60000/minute"})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"tokens_limit": "1/s;2/m;3/h", "tokens_output_limit": "1/s;2/m"},
            "at most 4 token limits together",
        ),
        (
            {"tokens_limit": "1/s", "tokens_overrun": "stop", "redis_url": "redis://localhost"},
            "streams cannot be ended at limits shared through REDIS_URL",
        ),
    ],
)
def test_contradiction_is_reported(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Settings(**values)


def test_processes_of_an_engine_share_a_limit() -> None:
    shared = fair_share((TokenLimit("tokens-60s", 100, 60), UserLimit("user-60s", 10, 60)), 3)
    assert [limit.limit for limit in shared] == [34, 4]
    assert [limit.exact for limit in shared] == [False, True]
