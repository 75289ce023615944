"""The metrics of work classes, pauses, the objective and the retry schedule."""

from __future__ import annotations

import dataclasses
import math

import pytest

from autoglm_throttle import Demand, Permit, Priority, RoutePolicy
from autoglm_throttle.limiting.work_class import WorkClasses
from autoglm_throttle.observe import METRICS
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.observe.metrics import CLIENT_ERROR, OTHER, UNDECLARED
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.types import WorkClassView
from tests.observe.scraping import LIMITER, Loaded, loaded, scraped, states, value

CHAT = WorkClassView("chat", 11.5, 1.75, 0.625, negligible=False, in_flight=15)


def with_classes(*classes: WorkClassView) -> Loaded:
    view = dataclasses.replace(LIMITER, work_classes=classes)
    return loaded({"routes": [RoutePolicy("/chat", name="chat")]}, concurrency=view)


def test_figures_of_the_limit_are_exported() -> None:
    throttle = loaded()
    assert value(throttle, "paused_requests") == 5
    assert value(throttle, "objective_seconds") == 6.5
    assert value(throttle, "objective_learned") == 1
    assert value(throttle, "retry_backlog_seconds") == 12.5


def test_route_of_the_settings_is_a_label() -> None:
    throttle = with_classes(CHAT)
    assert states(throttle, "work_class_rate") == {"chat": 11.5}
    assert states(throttle, "work_class_latency_seconds") == {"chat": 1.75}
    assert states(throttle, "work_class_unloaded_latency_seconds") == {"chat": 0.625}
    assert states(throttle, "work_class_negligible") == {"chat": 0}
    assert states(throttle, "work_class_inflight_requests") == {"chat": 15}


def test_names_from_paths_are_one_label() -> None:
    """The path of a request is data of a client."""
    throttle = with_classes(
        CHAT,
        WorkClassView("GET /secret/alice", 30.0, 0.1, 0.05, negligible=True, in_flight=2),
        WorkClassView('GET /"}\n\ud800', 10.0, 0.5, 0.25, negligible=True, in_flight=1),
        WorkClassView("POST /new", 0.0, None, None, negligible=True, in_flight=4),
    )
    assert states(throttle, "work_class_rate") == {"chat": 11.5, UNDECLARED: 40.0}
    assert states(throttle, "work_class_latency_seconds") == {"chat": 1.75, UNDECLARED: pytest.approx(0.2)}
    assert states(throttle, "work_class_unloaded_latency_seconds") == {"chat": 0.625}
    assert states(throttle, "work_class_negligible") == {"chat": 0, UNDECLARED: 1}
    assert states(throttle, "work_class_inflight_requests") == {"chat": 15, UNDECLARED: 7}


def test_label_is_negligible_only_if_all_its_classes_are() -> None:
    first = WorkClassView("GET /a", 30.0, 0.1, 0.05, negligible=True, in_flight=2)
    other = dataclasses.replace(first, name="GET /b", negligible=False)
    assert states(with_classes(first, other), "work_class_negligible") == {UNDECLARED: 0}


@pytest.mark.parametrize(
    ("first_s", "other_s", "mean_s"), [(None, 0.5, 0.5), (0.5, None, 0.5), (None, None, None)]
)
def test_mean_of_a_label_needs_one_known_class(
    first_s: float | None, other_s: float | None, mean_s: float | None
) -> None:
    first = WorkClassView("GET /a", 1.0, first_s, None, negligible=False, in_flight=2)
    other = dataclasses.replace(first, name="GET /b", mean_s=other_s)
    latency_s = value(with_classes(first, other), "work_class_latency_seconds", work_class=UNDECLARED)
    assert latency_s == mean_s


def test_classes_of_the_limiter_itself_have_their_labels() -> None:
    made = WorkClasses(None, {})
    assert (made.client_errors.name, made.shared.name) == (CLIENT_ERROR, OTHER)
    names = (CLIENT_ERROR, OTHER, "")
    throttle = with_classes(*(dataclasses.replace(CHAT, name=name) for name in names))
    assert set(states(throttle, "work_class_rate")) == {"client_error", "other", "default"}


def test_latency_that_is_not_known_has_no_series() -> None:
    throttle = with_classes(dataclasses.replace(CHAT, mean_s=None, unloaded_s=None))
    assert states(throttle, "work_class_latency_seconds") == {}
    assert states(throttle, "work_class_unloaded_latency_seconds") == {}
    assert states(throttle, "work_class_inflight_requests") == {"chat": 15}


def test_without_a_limit_none_of_them_is_exported() -> None:
    families = scraped(loaded(concurrency=None))
    starts = ("paused_", "objective_", "retry_backlog_", "work_class_")
    names = [spec.name for spec in METRICS if spec.name.removeprefix(PREFIX).startswith(starts)]
    assert len(names) == 9
    assert [name for name in names if families[name].samples] == []


def test_number_of_series_is_bounded_by_the_routes() -> None:
    throttle = with_classes(
        CHAT, *(dataclasses.replace(CHAT, name=f"GET /{number}") for number in range(300))
    )
    assert len(scraped(throttle)[PREFIX + "work_class_rate"].samples) == 2


def test_request_of_a_route_is_measured_in_its_class() -> None:
    throttle = throttle_for_tests(policy="concurrency", slo_s=4, routes=[RoutePolicy("/chat", name="chat")])
    permits = [throttle.try_admit(Demand(Priority.HIGH, route="chat")) for _ in range(3)]
    throttle.clock.advance(0.5)
    assert isinstance(permits[0], Permit)
    permits[0].settle()
    assert states(throttle, "work_class_inflight_requests") == {"chat": 2}
    assert value(throttle, "objective_seconds") == 4
    assert value(throttle, "objective_learned") == 0
    assert value(throttle, "retry_backlog_seconds") == 0
    assert math.isclose(value(throttle, "paused_requests") or 0.0, 0.0)
