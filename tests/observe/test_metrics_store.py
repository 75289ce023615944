"""The metrics of a shared store of user limits."""

from __future__ import annotations

import dataclasses
from typing import Any

from autoglm_throttle.limiting.shared.outage import State
from autoglm_throttle.limiting.shared.store import Health, Trouble
from autoglm_throttle.limiting.shared.windows import StoreView
from autoglm_throttle.model import OnError
from autoglm_throttle.observe.metric import PREFIX
from tests.observe.scraping import loaded, scraped, states, value

STORE = StoreView(
    kind="redis",
    state=State.REMOTE,
    why=None,
    since_s=1.0,
    on_error=OnError.LOCAL,
    processes=4,
    fallbacks=dict.fromkeys(Trouble, 0) | {Trouble.TIMEOUT: 3},
    spared=40,
    health=Health(calls=10, asked=500, late=2, connections=1, waiting=0),
)


def up(**changed: Any) -> float | None:
    return value(loaded(store=dataclasses.replace(STORE, **changed)), "redis_up")


def test_a_store_is_up_while_it_decides() -> None:
    assert up() == 1.0
    assert up(state=State.LOCAL) == up(state=State.PROBING) == 0.0


def test_decisions_without_it_are_counted_by_cause() -> None:
    told = states(loaded(store=STORE), "redis_fallback")
    assert told.pop("timeout") == 3
    assert set(told) == {trouble.value for trouble in Trouble} - {"timeout"}
    assert set(told.values()) == {0.0}


def test_what_it_was_asked_and_what_it_was_spared_is_told() -> None:
    throttle = loaded(store=STORE)
    assert value(throttle, "redis_decisions_total") == 500
    assert value(throttle, "redis_round_trips_total") == 10
    assert value(throttle, "redis_spared_total") == 40
    assert value(throttle, "redis_late_replies_total") == 2


def test_where_limits_are_in_memory_nothing_is_told_of_a_store() -> None:
    families = scraped(loaded())
    for name in ("up", "fallback", "decisions", "round_trips", "spared", "late_replies"):
        assert not families[f"{PREFIX}redis_{name}"].samples
