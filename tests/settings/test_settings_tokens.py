"""Settings of token limits: notation, their number, and what they cannot be combined with."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.admission import factory
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.settings import ConfigError, Settings
from autoglm_throttle.store.fallback import fair_share
from autoglm_throttle.types import Demand, TokenLimit, TokenReserve, UserLimit


def test_token_limits_are_off_by_default() -> None:
    assert factory.token_limit_sets(Settings()) == {}
    users = UserLimits(LimitSets([()] * 3, by_plan={}, by_route={}, address_factor=1.0), 100)
    assert factory.token_limits(Settings(), users, 1) is None


def test_limits_are_named_by_kind_and_window() -> None:
    settings = Settings(tokens_limit="5/minute;9/hour", tokens_input_limit="4/day", tokens_reserve="learned")
    sets = factory.token_limit_sets(settings)
    assert {kind: [each.users for each in of_kind] for kind, of_kind in sets.items()} == {
        "tokens": [(TokenLimit("tokens-60s", 5, 60), TokenLimit("tokens-3600s", 9, 3600))],
        "input": [(TokenLimit("input-86400s", 4, 86_400),)],
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


def test_plan_and_route_replace_a_limit_or_lift_it() -> None:
    settings = Settings(
        tokens_limit="5/minute",
        plans={"gold": {"tokens_limit": "50/minute"}, "staff": {"tokens_limit": "off"}},
        routes=[{"pattern": "/long", "tokens_output_limit": "7/minute"}, {"pattern": "/v1"}],
    )
    sets = factory.token_limit_sets(settings)

    def limits(kind: str, **demand: Any) -> list[int]:
        applied = sets[kind].of(Demand(user="ann", **demand))
        return [] if applied is None else [limit.limit for limit in applied.users]

    assert (limits("tokens"), limits("tokens", plan="gold"), limits("tokens", plan="staff")) == (
        [5],
        [50],
        [],
    )
    routes = [limits("output", route=name) for name in ("", "/long", "/v1")]
    assert routes == [[], [7], []]
    assert limits("tokens", route="/long") == [5]
    assert {each.name for of_kind in sets.values() for each in of_kind} == {
        "tokens.user",
        "tokens.plan-gold",
        "output.route-/long",
    }


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"plans": {"gold": {"tokens_limit": "x"}}}, "plans.gold.tokens_limit: "),
        (
            {"plans": {"gold": {"tokens_limit": "1/s;2/m;3/h", "tokens_input_limit": "1/s;2/m"}}},
            "plans.gold.tokens_input_limit: at most 4 token limits together",
        ),
        (
            {"routes": [{"pattern": "/a", "tokens_limit": "1/s;2/m;3/h", "tokens_output_limit": "1/s;2/m"}]},
            r"routes\[0\].tokens_output_limit: at most 4 token limits together",
        ),
        (
            {"routes": [{"pattern": "/a", "exempt": True, "tokens_input_limit": "1/s"}]},
            "an exempt route is never charged",
        ),
    ],
)
def test_wrong_limit_of_a_policy_is_named(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Settings(**values)


def test_processes_of_an_engine_share_a_limit() -> None:
    shared = fair_share((TokenLimit("tokens-60s", 100, 60), UserLimit("user-60s", 10, 60)), 3)
    assert [limit.limit for limit in shared] == [34, 4]
    assert [limit.exact for limit in shared] == [False, True]
