"""Arguments with a closed set of texts: mypy reads this file, where an unused ignore is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_type, get_args

import pytest
from starlette.responses import Response

from autoglm_throttle import (
    ConfigError,
    Criticality,
    Demand,
    Fallback,
    GuardPolicy,
    Permit,
    PlanPolicy,
    Priority,
    Reason,
    RoutePolicy,
    Throttle,
    mark,
)
from autoglm_throttle.asgi.responses import ResponseBuilder
from autoglm_throttle.fastapi import limit
from autoglm_throttle.settings.groups.callers import ResponseSettings
from autoglm_throttle.settings.route_policy import ResourcePolicy
from autoglm_throttle.testing import assert_limited, assert_rejected, assert_shed, throttle_for_tests
from autoglm_throttle.types import LIMITED, CriticalityName, Decision, LimitedReason, PriorityName, ShedReason


def rejection(reason: Reason) -> Response:
    decision = Decision(False, reason, f"{reason}:x", retry_after_s=1.0)
    status, _, body = ResponseBuilder(ResponseSettings()).rejection(decision)
    return Response(body, status)


LIMITED_BY_USER, SHED_BY_GPU = rejection(Reason.USER), rejection(Reason.GPU)

RIGHT: list[Callable[[], object]] = [
    lambda: mark(priority="high"),
    lambda: mark(priority=Priority.HIGH),
    lambda: limit("mid"),
    lambda: limit(Priority.MID),
    lambda: RoutePolicy("/", priority="low"),
    lambda: PlanPolicy("gold", priority="high"),
    lambda: ResourcePolicy(compute_priority="low"),
    lambda: GuardPolicy("db", criticality="core"),
    lambda: throttle_for_tests().feature("db", criticality="non_core", fallback=Fallback(static=1)),
    lambda: assert_limited(LIMITED_BY_USER, "user"),
    lambda: assert_limited(LIMITED_BY_USER, Reason.USER),
    lambda: assert_shed(SHED_BY_GPU, reason="gpu"),
    lambda: assert_rejected(LIMITED_BY_USER, reason="user", detail="user:x"),
    lambda: assert_rejected(SHED_BY_GPU, reason="gpu"),
]

WRONG: list[Callable[[], object]] = [
    lambda: mark(priority="hihg"),  # type: ignore[arg-type]
    lambda: limit("hihg"),  # type: ignore[arg-type]
    lambda: RoutePolicy("/", priority="hihg"),  # type: ignore[arg-type]
    lambda: PlanPolicy("gold", priority="hihg"),  # type: ignore[arg-type]
    lambda: ResourcePolicy(compute_priority="hihg"),  # type: ignore[arg-type]
    lambda: GuardPolicy("db", criticality="croe"),  # type: ignore[arg-type]
    lambda: throttle_for_tests().feature("db", criticality="croe"),  # type: ignore[arg-type]
    lambda: assert_limited(LIMITED_BY_USER, "usre"),  # type: ignore[arg-type]
    lambda: assert_limited(LIMITED_BY_USER, "gpu"),  # type: ignore[arg-type]
    lambda: assert_shed(SHED_BY_GPU, reason="user"),  # type: ignore[arg-type]
    lambda: assert_rejected(SHED_BY_GPU, reason="gup"),  # type: ignore[arg-type]
]


def test_literals_are_the_values_of_their_enums() -> None:
    assert get_args(PriorityName) == tuple(priority.label for priority in Priority)
    assert get_args(CriticalityName) == tuple(Criticality)
    assert set(get_args(LimitedReason)) == LIMITED
    assert set(get_args(ShedReason)) == set(Reason) - LIMITED - {Reason.OK}


@pytest.mark.parametrize("call", RIGHT)
def test_right_literal_is_accepted(call: Callable[[], object]) -> None:
    call()


@pytest.mark.parametrize("call", WRONG)
def test_wrong_literal_is_an_error(call: Callable[[], object]) -> None:
    with pytest.raises((ConfigError, AssertionError)):
        call()


async def slot_types(throttle: Throttle) -> None:
    """Only `Throttle.slot` is a context manager: the result of `try_admit` must be narrowed first."""
    async with throttle.slot(Demand()) as permit:
        assert_type(permit, Permit)
    with throttle.try_admit(Demand()):  # type: ignore[union-attr]
        pass
