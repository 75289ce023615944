"""The user's own function that identifies callers."""

from __future__ import annotations

from typing import Any

import pytest

from autoglm_throttle.asgi.callers import Caller, RequestClassifier
from autoglm_throttle.asgi.routes import RouteTable
from autoglm_throttle.settings import ConfigError, PlanPolicy, Settings
from autoglm_throttle.testing import ManualClock
from autoglm_throttle.types import Priority
from autoglm_throttle.types.identity import CallerHasher
from tests.asgi.scopes import ADDRESS, HASH, PLANS, known_as, make, scope


def test_identify_function_names_the_caller() -> None:
    caller = Caller("ann", plan="gold", priority=Priority.LOW, verified=True)
    demand = make(lambda scope: caller).demand(scope())
    assert known_as(demand) == (HASH.hash("user", "ann"), "")
    assert (demand.plan, demand.priority) == ("gold", Priority.LOW)
    assert "ann" not in repr(demand)


def test_unverified_identity_is_limited_by_address_too() -> None:
    assert known_as(make(lambda scope: Caller("ann")).demand(scope())) == (HASH.hash("user", "ann"), ADDRESS)


def test_a_plan_that_was_named_brings_its_priority() -> None:
    plans = {**PLANS, "night": PlanPolicy("night", priority="low")}
    assert make(lambda scope: Caller("a", plan="night"), plans=plans).demand(scope()).priority is Priority.LOW
    both = make(lambda scope: Caller("a", plan="night", priority=Priority.HIGH), plans=plans).demand(scope())
    assert both.priority is Priority.HIGH, "what identify says itself comes first"
    unknown = make(lambda scope: Caller("a", plan="never heard of"), plans=plans).demand(scope())
    assert (unknown.plan, unknown.priority) == ("never heard of", Priority.MID)


def raises(scope: Any) -> Caller:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "nobody", [None, Caller(""), Caller("", plan="gold", priority=Priority.HIGH, verified=True)]
)
def test_identify_none_means_address(nobody: Caller | None) -> None:
    hints: list[str] = []
    demand = make(lambda scope: nobody, hints, plans=PLANS).demand(scope(client=("8.8.4.4", 1)))
    assert known_as(demand) == (HASH.hash("address", "8.8.4.4"), "")
    assert (demand.plan, demand.priority) == (None, Priority.MID)
    assert hints == []


@pytest.mark.parametrize("answer", [lambda scope: None, raises])
def test_identify_without_result_reads_no_key(answer: Any) -> None:
    demand = make(answer, identity="header:x-api-key").demand(scope([(b"x-api-key", b"k-123")]))
    assert known_as(demand) == (ADDRESS, "")


@pytest.mark.parametrize(
    "answer",
    [
        raises,
        lambda scope: "ann",
        lambda scope: 17,
        lambda scope: {"user": "ann"},
        lambda scope: Caller(17),  # type: ignore[arg-type]
        lambda scope: Caller(["ann"]),  # type: ignore[arg-type]
        lambda scope: Caller("ann", priority="high"),  # type: ignore[arg-type]
        lambda scope: Caller("ann", priority=7),  # type: ignore[arg-type]
        lambda scope: Caller("ann", plan=["gold"]),  # type: ignore[arg-type]
        lambda scope: Caller("ann", plan=[]),  # type: ignore[arg-type]
        lambda scope, more: Caller("ann"),
    ],
)
def test_invalid_identify_result_is_counted_and_address_used(answer: Any) -> None:
    hints: list[str] = []
    demand = make(answer, hints).demand(scope([(b"x-priority", b"low")]))
    assert known_as(demand) == (ADDRESS, "")
    assert (demand.priority, demand.plan) == (Priority.LOW, None)
    assert hints == ["identify_failed"]


def test_identify_failure_is_logged_once_a_minute_without_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()

    def forged(scope: Any) -> Caller:
        raise ValueError("forged\nline")

    callers = RequestClassifier(Settings(), RouteTable(), identify=forged, clock=clock)
    for seconds in (0.0, 59.0, 1.0, 30.0):
        clock.advance(seconds)
        callers.demand(scope())
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("identify failed with ValueError at ")
    assert __file__ in caplog.messages[0]
    assert "forged" not in caplog.text


def test_identify_can_be_named_in_the_settings() -> None:
    callers = make(identity="tests.asgi.scopes:named")
    assert callers.demand(scope()).user == HASH.hash("user", "named")
    assert make(identity=f"{__name__}:Holder.inner").demand(scope()).user == HASH.hash("user", "inner")
    given_in_code = make(lambda scope: Caller("in code"), identity="tests.asgi.scopes:named")
    assert given_in_code.demand(scope()).user == HASH.hash("user", "in code")


class Holder:
    @staticmethod
    def inner(scope: Any) -> Caller:
        return Caller("inner")


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ("no_such_module_anywhere:identify", "cannot be imported"),
        (f"{__name__}:no_such_name", "cannot be imported"),
        ("tests.asgi.scopes:SECRET", "is not callable"),
    ],
)
def test_a_callable_that_is_none_is_said_at_the_start(identity: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(identity=identity)
    (problem,) = caught.value.problems
    assert problem.variable == "AUTOGLM_THROTTLE_IDENTITY"
    assert said in problem.message


# --- priority ---


async def late_identify(scope: object) -> Caller | None:
    return None


def test_a_coroutine_function_cannot_identify() -> None:
    for settings, identify in (
        (Settings(), late_identify),
        (Settings(identity=f"{__name__}:late_identify"), None),
    ):
        with pytest.raises(ConfigError, match="coroutine function"):
            RequestClassifier(settings, RouteTable(), identify=identify)  # type: ignore[arg-type]


@pytest.mark.parametrize(("verified", "plan"), [(True, "gold"), (False, None)])
def test_verified_user_is_matched_with_plan_members(verified: bool, plan: str | None) -> None:
    secret = "a secret of some length"
    member = CallerHasher(secret.encode()).hash("user", "alice")
    settings = Settings(key_secret=secret, plans=[PlanPolicy("gold", priority="high", members=[member])])
    callers = RequestClassifier(
        settings, RouteTable(), identify=lambda scope: Caller("alice", verified=verified)
    )
    demand = callers.demand({"type": "http", "headers": [], "client": ("10.0.0.1", 1)})
    assert demand.plan == plan
    assert demand.priority is (Priority.HIGH if verified else Priority.MID)
