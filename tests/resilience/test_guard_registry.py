"""The guards of a throttle: their rules, their listeners, and their eviction."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import threading
from typing import Any

import pytest

from autoglm_throttle import (
    BreakerSettings,
    BreakerState,
    BreakerTransition,
    ConfigError,
    Fallback,
    GuardPermit,
    GuardPolicy,
    GuardRejected,
    GuardRejection,
    Settings,
    Throttle,
)
from autoglm_throttle.resilience.registry import GuardRegistry, GuardsView
from autoglm_throttle.resilience.state import GuardState
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import BreakerMode, BreakerView
from tests.runtime.test_after_fork import from_child


def fail(throttle: Throttle, name: str, times: int = 5) -> None:
    for _ in range(times):
        with pytest.raises(ConnectionError), throttle.guard(name):
            raise ConnectionError("away")


def seen(throttle: Throttle) -> GuardsView:
    guards = throttle.snapshot().guards
    assert guards is not None
    return guards


def loaded(throttle: ManualThrottle, pct: float, samples: int = 4) -> None:
    throttle.gpu.utilization_pct = pct
    for _ in range(samples):
        throttle.clock.advance(1.0)
        throttle.tick()


def names(throttle: Throttle) -> set[str]:
    return {breaker.name for breaker in seen(throttle).breakers}


def failing() -> str:
    raise ConnectionError("away")


def passed(answer: GuardPermit | GuardRejection) -> GuardPermit:
    assert isinstance(answer, GuardPermit)
    return answer


class TestFigures:
    def test_five_failures_open_for_ten_seconds_and_one_probe_closes(self) -> None:
        throttle = throttle_for_tests()
        fail(throttle, "db", 4)
        assert throttle.guard("db").state() is BreakerState.CLOSED
        fail(throttle, "db", 1)
        with pytest.raises(GuardRejected) as rejected, throttle.guard("db"):
            pytest.fail("let through")
        assert (rejected.value.name, rejected.value.retry_after_s) == ("db", 10.0)
        throttle.clock.advance(10.0)
        with throttle.guard("db"):
            assert throttle.guard("db").rejection() is not None
        assert throttle.guard("db").state() is BreakerState.CLOSED

    def test_code_wins_over_guard_table_and_global_settings(self) -> None:
        throttle = throttle_for_tests(
            breaker_failures=4,
            breaker_open_s=7,
            breaker_backoff=2,
            guards=[GuardPolicy("db", failures=3, open_s=8)],
        )
        own = throttle.feature("db", breaker=BreakerSettings(failures=2)).settings
        assert (own.failures, own.open_s, own.backoff) == (2, 8.0, 2.0)
        other = throttle.guard("other").settings
        assert (other.failures, other.open_s, other.backoff) == (4, 7.0, 2.0)

    def test_configured_feature_applies_where_code_has_none(self) -> None:
        policy = GuardPolicy("related", criticality="non_core", shed_above=0.5)
        throttle = throttle_for_tests(guards=[policy])
        before = throttle.may_degrade
        throttle.guard("related")
        assert (before, throttle.may_degrade) == (False, True)
        loaded(throttle, 60.0)
        assert not throttle.guard("related").is_available()
        assert throttle.guard("another").is_available()

    def test_a_contradiction_names_the_guard(self) -> None:
        throttle = throttle_for_tests()
        with pytest.raises(ConfigError, match=r"guards\.db\.open_max_s: must be at least BREAKER_OPEN_S"):
            throttle.feature("db", breaker=BreakerSettings(open_max_s=5))

    @pytest.mark.parametrize("name", ["", "a\nb", "x" * 201])
    def test_a_name_that_cannot_be_one_is_an_error(self, name: str) -> None:
        throttle = throttle_for_tests()
        with pytest.raises(ConfigError, match="1 to 200 printable"):
            throttle.guard(name)
        with pytest.raises(ConfigError, match="1 to 200 printable"):
            throttle.feature(name)

    def test_an_impossible_feature_is_an_error_and_is_not_registered(self) -> None:
        throttle = throttle_for_tests()
        with pytest.raises(ConfigError, match=r"guards\.db: .*shed_above"):
            throttle.feature("db", criticality="core", shed_above=0.5)
        with pytest.raises(ConfigError, match=r"guards\.db\.criticality: must be one of core, non_core"):
            throttle.feature("db", criticality="nope")  # type: ignore[arg-type]
        mistakes: list[Any] = [[], list]
        for wrong in mistakes:
            with pytest.raises(TypeError, match="fallback must be a Fallback or a function"):
                throttle.feature("db", fallback=wrong)

        def without_argument() -> str:
            return "nothing"

        mistakes = [without_argument]
        with pytest.raises(ValueError, match="dynamic must accept one argument, the FallbackContext"):
            throttle.feature("db", fallback=mistakes[0])
        throttle.feature("db")

    # FIELD section 3
    def test_feature_registers_after_its_guard_was_used(self) -> None:
        throttle = throttle_for_tests(breaker_failures=1)

        @throttle.guard("db")
        def search(item: str) -> str:
            raise ConnectionError

        throttle.feature("db", fallback=lambda context: f"none for {context.args[0]}")
        assert (search("a"), search("b")) == ("none for a", "none for b")
        assert throttle.guard("db").state() is BreakerState.OPEN
        with pytest.raises(ValueError, match="registered already"):
            throttle.feature("db")

    # FIELD section 3
    def test_late_feature_applies_its_exceptions(self) -> None:
        throttle = throttle_for_tests(breaker_failures=1)
        with throttle.guard("db"):
            throttle.feature("db", ignore=KeyError)
        with contextlib.suppress(KeyError), throttle.guard("db"):
            raise KeyError
        assert throttle.guard("db").state() is BreakerState.CLOSED

    @pytest.mark.parametrize(
        "late", [{"breaker": BreakerSettings(failures=2)}, {"classify": lambda value, raised: None}]
    )
    def test_what_guarded_functions_have_built_in_comes_first(self, late: dict[str, Any]) -> None:
        throttle = throttle_for_tests()
        throttle.guard("db")
        with pytest.raises(ValueError, match="give breaker and classify before its first use"):
            throttle.feature("db", **late)

    # FIELD section 3
    def test_figures_can_be_given_where_the_guard_is_used(self) -> None:
        throttle = throttle_for_tests(guards=[GuardPolicy("db", failures=4, open_s=8)])
        for _ in range(3):
            with contextlib.suppress(OSError), throttle.guard("db", failures=3):
                raise OSError
        assert throttle.guard("db").state() is BreakerState.OPEN
        rejection = throttle.guard("db").rejection()
        assert rejection is not None
        assert rejection.retry_after_s == 8.0
        assert throttle.guard("other").settings.failures == 5

    @pytest.mark.parametrize(
        ("environ", "figures"),
        [
            ({"AUTOGLM_THROTTLE_BREAKER_TRIP": "failure_rate"}, {}),
            ({"AUTOGLM_THROTTLE_BREAKER_FAILURES": "3"}, {"failure_rate": 0.5}),
            ({"AUTOGLM_THROTTLE_BREAKER_TRIP": "consecutive"}, {"failure_rate": "100%"}),
        ],
    )
    def test_guard_with_a_rate_opens_by_it_alone(
        self, environ: dict[str, str], figures: dict[str, Any]
    ) -> None:
        made = throttle_for_tests()
        throttle = ManualThrottle(Settings.from_env(environ, gpu="none"), made.clock, made.gpu)
        throttle.guard("db", **figures)
        fail(throttle, "db", 19)
        throttle.clock.advance(10.0)  # the default window is 10 s long
        fail(throttle, "db", 19)
        assert throttle.guard("db").state() is BreakerState.CLOSED
        fail(throttle, "db", 1)
        assert throttle.guard("db").state() is BreakerState.OPEN

    def test_wrong_figures_of_a_guard_name_the_argument(self) -> None:
        throttle = throttle_for_tests()
        with pytest.raises(ConfigError, match="failures: must be a whole number from 1 to 10000"):
            throttle.guard("db", failures=0)
        misspelt: dict[str, Any] = {"failure": 3}
        with pytest.raises(ConfigError, match=r"failure: .*failures"):
            throttle.guard("db", **misspelt)
        with pytest.raises(ConfigError, match=r"guards\.db\.open_max_s: must be at least BREAKER_OPEN_S"):
            throttle.guard("db", open_max_s=5)
        with pytest.raises(ConfigError, match="failure_rate: needs failure_rate in trip"):
            throttle.guard("db", trip="consecutive", failure_rate=0.3)
        with pytest.raises(ConfigError, match="window: excludes window_s, 5"):
            throttle.guard("db", window=30, window_s=5)
        assert throttle.guard("db", failures=3).settings.failures == 3

    def test_one_guard_has_one_set_of_figures(self) -> None:
        throttle = throttle_for_tests()
        first = throttle.guard("db", failures=3, open_s="8s")
        assert throttle.guard("db", open_s=8, failures=3).circuit is first.circuit
        assert throttle.guard("db").circuit is first.circuit
        with pytest.raises(ValueError, match="'db' exists already with other figures"):
            throttle.guard("db", failures=4)
        throttle.feature("related", breaker=BreakerSettings(failures=2))
        assert throttle.guard("related", failures=2).settings.failures == 2
        with pytest.raises(ValueError, match="'related' exists already with other figures"):
            throttle.guard("related", failures=3)

    def test_guards_with_figures_are_evicted_like_others(self) -> None:
        throttle = throttle_for_tests(breaker_max_names=2)
        for number in range(5):
            throttle.guard(f"tenant {number}", failures=3)
        view = throttle.snapshot().guards
        assert view is not None
        assert len(view.breakers) == 2
        assert throttle.guard("tenant 0", failures=2).settings.failures == 2


class TestRegistry:
    def test_one_name_is_one_breaker(self) -> None:
        throttle = throttle_for_tests()
        assert throttle.guard("db").circuit is throttle.guard("db").circuit
        assert throttle.guard("db").circuit is not throttle.guard("other").circuit

    def test_64_threads_that_meet_make_one_breaker(self) -> None:
        throttle = throttle_for_tests()
        circuits: list[object] = []
        barrier = threading.Barrier(64)

        def request() -> None:
            barrier.wait()
            circuits.append(throttle.guard("db").circuit)

        threads = [threading.Thread(target=request) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, circuits))) == 1

    def test_oldest_idle_guard_is_evicted_then_a_closed_one(self) -> None:
        throttle = throttle_for_tests(breaker_max_names=4)
        fail(throttle, "failed once", 1)
        fail(throttle, "open")
        throttle.feature("feature", fallback=Fallback(static=1))
        throttle.guard("idle")
        throttle.guard("new")
        assert names(throttle) == {"failed once", "open", "feature", "new"}
        fail(throttle, "new", 1)
        throttle.guard("newer")
        assert names(throttle) == {"open", "feature", "new", "newer"}

    def test_a_feature_is_guarded_whatever_else_there_is(self) -> None:
        throttle = throttle_for_tests(breaker_max_names=1)
        fail(throttle, "open")
        related = throttle.feature("related", fallback=Fallback(static="kept"))(failing)
        assert related() == "kept"
        assert names(throttle) == {"open", "related"}

    def test_counts_of_an_evicted_guard_join_the_others(self) -> None:
        throttle = throttle_for_tests(breaker_max_names=2)
        for number in range(20):
            fail(throttle, f"host {number}")
            throttle.guard(f"host {number}").reset()
        changes = seen(throttle).transitions
        assert {name for name, _ in changes} == {"_others", "host 18", "host 19"}
        assert sum(n for (_, state), n in changes.items() if state is BreakerState.OPEN) == 20

    def test_new_name_does_not_wait_for_other_guards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        throttle = throttle_for_tests(breaker_max_names=100)
        for number in range(100):
            fail(throttle, f"host {number}")
        looks = []
        view = GuardState.view

        def looked(circuit: GuardState) -> BreakerView:
            looks.append(circuit.name)
            return view(circuit)

        monkeypatch.setattr(GuardState, "view", looked)
        throttle.guard("new")
        assert 0 < len(looks) <= 16

    def test_held_guard_is_returned_again(self) -> None:
        throttle = throttle_for_tests(breaker_max_names=1)
        held = throttle.guard("held")
        throttle.guard("other")
        assert throttle.guard("held").circuit is held.circuit
        del held
        gc.collect()
        fresh = throttle.guard("held").circuit
        assert fresh.view().calls == 0

    def test_a_guard_that_comes_back_is_seen_again(self) -> None:
        throttle = throttle_for_tests(breaker_max_names=1)
        held = throttle.guard("held")
        throttle.guard("other")
        fail(throttle, "held")
        assert throttle.guard("held").state() is BreakerState.OPEN
        assert [breaker.name for breaker in seen(throttle).breakers] == ["held"]
        assert held.state() is BreakerState.OPEN

    def test_guards_beyond_the_maximum_are_disabled_and_warn_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        throttle = throttle_for_tests(breaker_max_names=2)
        for name in ("a", "b"):
            fail(throttle, name)
        with caplog.at_level(logging.WARNING, "autoglm_throttle"):
            for name in ("c", "d"):
                fail(throttle, name, 10)
                assert throttle.guard(name).state() is BreakerState.DISABLED
        events = [getattr(record, "event", "") for record in caplog.records]
        assert events.count("guard_table_full") == 1
        assert len(seen(throttle).breakers) == 2

    def test_throttle_without_guards_loads_no_guard_code(self) -> None:
        throttle = throttle_for_tests()
        assert throttle.snapshot().guards is None
        assert not throttle.may_degrade


class TestListeners:
    def test_listeners_get_changes_in_order_despite_a_failing_one(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        throttle = throttle_for_tests()
        received: list[BreakerTransition] = []

        def failing(_: BreakerTransition) -> None:
            raise RuntimeError("a listener of the application")

        throttle.add_listener(failing)
        throttle.add_listener(received.append)
        fail(throttle, "db")
        throttle.clock.advance(10.0)
        with throttle.guard("db"):
            pass
        steps = [(change.before, change.after) for change in received]
        assert steps == [
            (BreakerState.CLOSED, BreakerState.OPEN),
            (BreakerState.OPEN, BreakerState.HALF_OPEN),
            (BreakerState.HALF_OPEN, BreakerState.CLOSED),
        ]
        faults = [record for record in caplog.records if "a listener failed" in record.message]
        assert [record.levelname for record in faults] == ["WARNING"], "one line in 30 s, not one for each"

    def test_changes_are_logged_and_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        throttle = throttle_for_tests()
        with caplog.at_level(logging.INFO, "autoglm_throttle"):
            fail(throttle, "db")
        (line,) = (r for r in caplog.records if getattr(r, "event", "") == "breaker_changed")
        keys = line.__dict__
        assert (keys["breaker"], keys["state"], keys["state_before"]) == ("db", "open", "closed")
        assert keys["retry_after_s"] == 10.0
        assert seen(throttle).transitions == {("db", BreakerState.OPEN): 1}

    def test_the_mode_of_the_settings_is_that_of_each_guard(self) -> None:
        throttle = throttle_for_tests(breaker_mode=BreakerMode.METRICS_ONLY)
        fail(throttle, "db", 9)
        (breaker,) = seen(throttle).breakers
        assert (breaker.metrics_only, breaker.would_reject, breaker.calls) == (True, 4, 9)


class TestSettled:
    def test_invalid_outcome_is_an_error_and_frees_the_slot(self) -> None:
        throttle = throttle_for_tests(breaker_half_open_max=1)
        fail(throttle, "db", 4)
        guard = throttle.guard("db")
        wrong: Any = "broken"
        with pytest.raises(ValueError, match="broken"):
            guard.settle(passed(guard.allow()), wrong)
        word: Any = "failure"
        guard.settle(passed(guard.allow()), word)
        assert guard.state() is BreakerState.OPEN

    def test_one_exception_class_need_not_be_in_a_list(self) -> None:
        throttle = throttle_for_tests()
        related = throttle.feature("db", ignore=ConnectionError)(failing)
        for _ in range(9):
            with pytest.raises(ConnectionError):
                related()
        assert throttle.guard("db").state() is BreakerState.CLOSED


class TestLife:
    def test_guards_do_not_keep_a_throttle_alive(self) -> None:
        import weakref

        throttle = throttle_for_tests()
        guard = throttle.guard("db")
        gone = weakref.ref(throttle)
        del throttle
        gc.collect()
        assert gone() is None
        with guard:
            pass

    def test_finalizer_may_request_a_guard_during_the_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        throttle = throttle_for_tests()
        made = GuardRegistry.__init__

        def collecting(self: GuardRegistry, *args: Any, **parts: Any) -> None:
            if not requested:
                requested.append(1)
                requested.append(throttle.guard("db"))
            made(self, *args, **parts)

        requested: list[object] = []
        monkeypatch.setattr(GuardRegistry, "__init__", collecting)
        assert throttle.guard("db").circuit is getattr(requested[1], "circuit", None)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
    def test_guards_of_a_forked_child_begin_anew(self) -> None:
        throttle = throttle_for_tests()
        related = throttle.feature("related", fallback=Fallback(static=1))(failing)
        fail(throttle, "db")
        throttle.clock.advance(10.0)
        guard = throttle.guard("db")
        probe = passed(guard.allow())

        def report() -> object:
            signal.alarm(60)
            guard.settle(probe)
            view = seen(throttle)
            answer = related()
            return [
                guard.state(),
                guard.is_available(),
                sum(view.transitions.values()),
                throttle.may_degrade,
                answer,
            ]

        assert from_child(report) == ["closed", True, 0, True, 1]
        guard.settle(probe)
        assert guard.state() is BreakerState.CLOSED
