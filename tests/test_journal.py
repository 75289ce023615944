"""Which changes become log lines, and how often refusals do."""

from __future__ import annotations

import logging
import math

import pytest

from autoglm_throttle import journal
from autoglm_throttle.journal import Line, RefusalSampler, changes
from autoglm_throttle.limiting.shared.outage import Change, State
from autoglm_throttle.limiting.shared.store import Health, Trouble
from autoglm_throttle.limiting.shared.windows import StoreView
from autoglm_throttle.model import Decision, Demand, OnError, Priority, Reason, Regime, Telemetry, Why
from autoglm_throttle.settings import Problem


def regime(
    factor: float = 1.0,
    tier: float = 1.0,
    why: Why = Why.CALM,
    telemetry: Telemetry = Telemetry.FRESH,
    load: float | None = 0.5,
) -> Regime:
    return Regime(factor, tier, load, 0.0, why, telemetry, math.inf)


def test_no_change_is_no_line() -> None:
    assert list(changes(regime(), regime())) == []
    assert list(changes(regime(load=0.2), regime(why=Why.STRIKE, load=0.9))) == []


def test_a_tier_entered_warns_and_a_tier_left_informs() -> None:
    calm, cut = regime(), regime(0.7, 0.7, Why.TIER, load=0.88)
    (entered,) = changes(calm, cut)
    assert (entered.event, entered.level) == ("tier_changed", logging.WARNING)
    assert entered.text == "rates at 70% of nominal (tier)"
    assert entered.keys == {
        "factor": 0.7,
        "factor_before": 1.0,
        "why": "tier",
        "gpu_utilization_ratio": 0.88,
    }
    (left,) = changes(cut, calm)
    assert (left.event, left.level) == ("tier_changed", logging.INFO)


@pytest.mark.parametrize("shut", [regime(0.0, 0.0, Why.TIER), regime(0.0, 1.0, Why.LOST)])
def test_a_door_that_shuts_or_opens_is_a_line(shut: Regime) -> None:
    (line,) = changes(regime(), shut)
    assert (line.level, line.keys["factor"]) == (logging.WARNING, 0.0)
    (line,) = changes(shut, regime())
    assert (line.level, line.keys["factor"]) == (logging.INFO, 1.0)


def test_a_factor_that_drifts_is_no_line() -> None:
    assert list(changes(regime(0.5), regime(0.51))) == []
    assert len(list(changes(regime(0.0), regime(0.01)))) == 1, "but a door that opens is"


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (Telemetry.FRESH, logging.INFO),
        (Telemetry.LATE, logging.INFO),
        (Telemetry.STALE, logging.WARNING),
        (Telemetry.BLIND, logging.WARNING),
        (Telemetry.NONE, logging.INFO),
    ],
)
def test_telemetry_that_changes_is_a_line(state: Telemetry, level: int) -> None:
    (line,) = changes(regime(telemetry=Telemetry.STARTING), regime(telemetry=state))
    assert (line.event, line.level) == ("telemetry_changed", level)
    assert line.text == f"GPU telemetry is {state}"
    assert line.keys == {"state": state.value, "state_before": "starting", "factor": 1.0}


def test_a_line_reaches_the_logger_with_its_keys(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "autoglm_throttle"):
        Line("tier_changed", logging.WARNING, "rates at 70%", {"factor": 0.7}).write()
        Line("noise", logging.DEBUG, "not heard", {}).write()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("autoglm_throttle", "WARNING")
    assert record.getMessage() == "rates at 70%", "a percent sign is no placeholder"
    assert (vars(record)["event"], vars(record)["factor"]) == ("tier_changed", 0.7)


def test_a_refusal_names_its_caller_by_the_hash_only() -> None:
    demand = Demand(Priority.LOW, "07f3a9c2d4e5b617", address="aaaa", group="bbbb")
    decision = Decision(False, Reason.USER, "user:user-60s", "user-60s", retry_after_s=12.5)
    line = journal.refused(demand, decision, "limited", 3, demand.user)
    assert line.text == "3 limited (user:user-60s)"
    assert line.keys == {
        "priority": "low",
        "decision": "limited",
        "reason": "user",
        "detail": "user:user-60s",
        "client_hash": "07f3a9c2d4e5b617",
        "retry_after_s": 12.5,
        "count": 3,
    }


def test_the_first_refusal_is_written_and_the_rest_are_counted() -> None:
    sampler = RefusalSampler(10.0)
    assert sampler.note(Reason.USER, 100.0) == 1
    assert [sampler.note(Reason.USER, 100.0 + n) for n in range(1, 10)] == [0] * 9
    assert sampler.note(Reason.RATE, 105.0) == 1, "each reason for itself"
    assert sampler.note(Reason.USER, 110.0) == 10, "with it the nine that were not written"
    assert sampler.note(Reason.USER, 119.9) == 0
    assert sampler.note(Reason.USER, 500.0) == 2


def test_every_refusal_is_counted_once() -> None:
    sampler = RefusalSampler(1.0)
    written = sum(sampler.note(Reason.GPU, n * 0.13) for n in range(1000))
    assert written + int(sampler._seen[Reason.GPU][1]) == 1000


def test_the_end_of_a_flood_is_told_once_the_interval_is_over() -> None:
    sampler = RefusalSampler(10.0)
    assert sampler.overdue(0.0) == []
    for instant in (100.0, 101.0, 102.0):
        sampler.note(Reason.USER, instant)
    sampler.note(Reason.RATE, 100.0)
    assert sampler.overdue(109.9) == []
    assert sampler.overdue(110.0) == [(Reason.USER, 2)], "of the rate nothing was left to tell"
    assert sampler.overdue(500.0) == []
    assert sampler.note(Reason.USER, 505.0) == 1
    assert sampler.note(Reason.USER, 506.0) == 0


def test_what_was_only_counted_is_told_without_a_caller() -> None:
    line = journal.more_refused(Reason.USER, "limited", 12)
    assert line.text == "12 limited (user)"
    assert line.keys == {"decision": "limited", "reason": "user", "count": 12}


def test_the_settings_in_force_are_one_line() -> None:
    values = {"policy": "tiers", "rate_low_rps": "100", "slo_s": "2", "tiers": "9" * 61, "redis_url": "****"}
    line = journal.configured(values, ["tiers", "redis_url"])
    assert (line.event, line.level, line.keys) == ("config", logging.INFO, {"settings": values})
    shortened = "9" * 58 + ".."
    assert line.text == (
        f"the limits in force: policy=tiers, rate_low_rps=100, tiers={shortened}, redis_url=****"
    )


def store(on_error: OnError, processes: int = 4) -> StoreView:
    return StoreView(
        "redis",
        State.LOCAL,
        Trouble.TIMEOUT,
        0.0,
        on_error,
        processes,
        dict.fromkeys(Trouble, 0),
        0,
        Health(),
    )


@pytest.mark.parametrize(
    ("on_error", "meanwhile"),
    [
        (OnError.LOCAL, "each process goes by 1/4 of the user limits until it answers"),
        (OnError.ALLOW, "no user limit holds until it answers"),
        (OnError.DENY, "all whom a user limit applies to are refused until it answers"),
    ],
)
def test_a_store_that_is_lost_warns_and_says_what_holds_meanwhile(on_error: OnError, meanwhile: str) -> None:
    line = journal.store_changed(store(on_error), Change(State.LOCAL, Trouble.TIMEOUT, 9.0, 3.0), "too slow")
    assert (line.event, line.level) == ("store_lost", logging.WARNING)
    assert line.text == f"redis cannot be asked: timeout (too slow); {meanwhile}"
    assert line.keys == {"store": "redis", "reason": "timeout", "on_error": on_error.value}


def test_a_store_that_is_back_informs_and_says_how_long_it_was_away() -> None:
    line = journal.store_changed(store(OnError.LOCAL), Change(State.REMOTE, None, 9.0, 3.25), "")
    assert (line.event, line.level) == ("store_back", logging.INFO)
    assert line.text == "redis answers again after 3.2 s; user limits are shared again"
    assert line.keys == {"store": "redis", "down_s": 3.25}


def test_a_setting_that_nobody_can_have_meant_warns() -> None:
    line = journal.configured_oddly(Problem("X_REDIS_URL", "is set, but nothing uses it", "set USER_LIMIT"))
    assert (line.event, line.level, line.keys) == ("config", logging.WARNING, {"setting": "X_REDIS_URL"})
    assert "nothing uses it" in line.text
